"""Rules for generation engines: the cache of ours, and where those that run elsewhere are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import ABSENT, Problem
from rlinf.config.schema.rollout import SERVERS, ReasoningRolloutConfig
from rlinf.config.task_types import GENERATING, LANGUAGE
from rlinf.utils.urls import check_url

_OF_SERVER = (
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "enforce_eager",
    "cuda_graph_max_bs",
    "enable_torch_compile",
    "enable_offload",
)
"""Keys that a server was started with, whatever the config says."""


@cross_check(GENERATING)
def servers_have_addresses(context: CheckContext) -> Iterator[Problem]:
    """An engine that runs elsewhere has a URL, and one that does not has none."""
    rollout, path = context.cfg.rollout, "rollout.server.url"
    given, backend = _given(rollout), rollout.rollout_backend
    if backend not in SERVERS:
        if given is not None:
            message = f"has no effect: rollout.rollout_backend is {backend}"
            hint = f"set rollout.rollout_backend to {' or '.join(SERVERS)}, or leave this out"
            yield Problem(path, given, message, hint)
        return
    if not given:
        message = f"is missing: where is the engine of rollout_backend {backend}?"
        yield Problem(path, ABSENT if given is None else given, message, "http://host:8000")
        return
    for url in [given] if isinstance(given, str) else given:
        try:
            check_url(url)
        except ValueError as error:
            yield Problem(path, given, str(error))


@cross_check(GENERATING)
def servers_are_one_per_worker(context: CheckContext) -> Iterator[Problem]:
    """Each rollout worker has a server for itself, whose weights it replaces."""
    rollout, workers = context.cfg.rollout, context.workers("rollout")
    given = _given(rollout)
    if rollout.rollout_backend not in SERVERS or not given:
        return
    urls = [given] if isinstance(given, str) else given
    if len(urls) != workers:
        message = f"names {len(urls)} servers for {workers} rollout workers"
        hint = "name one per worker; a worker without a device can be placed anywhere"
        yield Problem("rollout.server.url", given, message, hint)
    elif len(set(urls)) != workers:
        message = "names a server twice: its weights would be replaced under another worker's feet"
        yield Problem("rollout.server.url", given, message, "name one per worker")


@cross_check(GENERATING)
def servers_get_weights(context: CheckContext) -> Iterator[Problem]:
    """What is trained, or is in a checkpoint, reaches a server through a folder."""
    cfg = context.cfg
    server, path = cfg.rollout.server, "rollout.server.weights_folder"
    if cfg.rollout.rollout_backend not in SERVERS or server.weights_folder is not None:
        return
    hint = "a folder that worker and server see under the same path"
    if cfg.runner.task_type in LANGUAGE:
        message = (
            "is missing: the server could not get the weights that are trained; a model that "
            "stays as it is can be evaluated (runner.task_type: reasoning_eval)"
        )
        yield Problem(path, ABSENT, message, hint)
        return
    weights = cfg.runner.ckpt_path
    if weights is not None and not (Path(weights).expanduser() / "config.json").is_file():
        message = f"is missing: the server could not get the weights of {weights}"
        yield Problem(path, ABSENT, message, hint)


@cross_check(GENERATING)
def servers_have_settings_of_their_own(context: CheckContext) -> Iterator[Problem]:
    """What a server was started with is not set here as well."""
    rollout = context.cfg.rollout
    if rollout.rollout_backend not in SERVERS:
        return
    for key in _OF_SERVER:
        value = getattr(rollout, key)
        if value != ReasoningRolloutConfig.model_fields[key].default:
            message = f"has no effect: rollout_backend is {rollout.rollout_backend}"
            yield Problem(f"rollout.{key}", value, message, "start the server with such a setting")


@cross_check(GENERATING)
def cache_tokens_have_a_paged_cache(context: CheckContext) -> Iterator[Problem]:
    """A limit of the paged cache is not set where there is none."""
    section = context.cfg.rollout.hf
    if section.max_cache_tokens is not None and section.paged_cache is False:
        message = "has no effect: rollout.hf.paged_cache is false"
        hint = "set rollout.hf.paged_cache to auto or true, or leave this out"
        yield Problem("rollout.hf.max_cache_tokens", section.max_cache_tokens, message, hint)


def _given(rollout: Any) -> str | list[str] | None:
    url = rollout.server.url
    return url if url is None or isinstance(url, str) else list(url)
