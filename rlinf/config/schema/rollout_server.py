"""The `rollout_server` section: the endpoint by which clients use a policy while it learns."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section


class RolloutServerConfig(Section):
    """Where the endpoint listens, and how much clients may do."""

    group_name: str = Field("RolloutServerGroup", description="Name of the group of workers.")
    host: str = Field(
        "127.0.0.1", description="Address to listen at; loopback unless others are to be let in."
    )
    port: Int = Field(0, ge=0, le=65535, description="Port to listen at; 0 is a free one.")
    model_name: str | None = Field(
        None,
        description="Name that requests have to give; null is runner.logger.experiment_name.",
    )
    requests_per_second: Float = Field(
        1000.0,
        ge=0,
        description="Requests of one address, on average; those of two seconds may come at once; "
        "0 is no limit.",
    )
    max_body_mb: Float = Field(4.0, gt=0, description="Largest request (MiB).")
    max_sessions: Int = Field(10_000, gt=0, description="Sessions that wait for their reward.")
    max_session_tokens: Int = Field(
        1_000_000,
        gt=0,
        description="Tokens of prompts and answers of one session; a request beyond is refused.",
    )
    session_timeout: Float = Field(
        3600.0, gt=0, description="A session that nobody uses for so long is dropped (s)."
    )
    max_engine_restarts: Int = Field(
        3,
        ge=0,
        description="Rollout workers that may be started anew in a run before one that dies ends "
        "it.",
    )
    engine_timeout: Float = Field(
        300.0,
        gt=0,
        description="A rollout worker that does not answer for so long, also in a weight update, "
        "is ended and started anew; one whose process still runs has twice as long (s).",
    )
    parser: str = Field("qwen", description="Format of tool calls: qwen, llama_json, ...")
    patience: Float = Field(
        1500.0,
        gt=0,
        description="Time that the run waits for the next rewarded session before it fails (s).",
    )
    simulated_users: Int = Field(
        0,
        ge=0,
        description="Users that the example plays: they ask for what data has and accept what the "
        "reward does; 0 leaves it to real ones.",
    )
    think_seconds: Float = Field(
        0.0, ge=0, description="Pause of a simulated user between two requests (s)."
    )
