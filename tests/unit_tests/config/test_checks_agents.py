"""Rules between the keys of an agent's config."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.config import ConfigError, build_config, validate_cfg

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "agents" / "config"


def check(*overrides, recipe="calculator_agent"):
    return validate_cfg(build_config(recipe, list(overrides), CONFIGS))


def test_the_recipe_is_valid():
    cfg = check()
    assert cfg.runner.task_type == "agent" and cfg.agentloop.overlong == "score"
    assert cfg.runner.logger.experiment_name == "calculator_agent"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["agentloop.tools=[calculater]"], "did you mean 'calculator'"),
        (["agentloop.parser=hermes"], "no tool_parser is registered"),
        (["+agentloop.type=toools"], "no agent_loop is registered"),
        (["agentloop.tools=[]"], "the loop of type tools needs one"),
        (["agentloop.max_total_tokens=49"], "more than runner.seq_length"),
        (["agentloop.max_total_tokens=8"], "no room behind a prompt of 8 tokens"),
        (["agentloop.parser=qwen"], "there is no chat template"),
        (["+algorithm.overlong_buffer_length=4"], "episodes have several"),
        (["+agentloop.max_turn=4"], "did you mean 'max_turns'"),
        (["+agentloop.overlong=keep"], "score, zero, drop"),
        (["runner.task_type=reasoning"], "a run of task_type reasoning has no 'agentloop'"),
        (["+agentloop.tool_settings={python: {timeout: 1}}"], "is not one of agentloop.tools"),
        (["+agentloop.tool_settings={calculator: {timout: 1}}"], "did you mean 'timeout'"),
        (["+agentloop.tool_settings={calculator: {retries: -1}}"], "retries"),
        (["+agentloop.mcp_servers={a: {}}"], "has no command and no url"),
        (["+agentloop.mcp_servers={a: {command: b, url: c}}"], "has a command and a url"),
        (["+agentloop.mcp_servers={a: {command: b, headers: {c: d}}}"], "for servers with a url"),
        (["+agentloop.mcp_servers={a: {url: b, args: [c]}}"], "for servers with a command"),
        (["+agentloop.type=env"], "agentloop.env"),
        (["+agentloop.type=env", "+agentloop.env=room"], "did you mean 'rooms'"),
        (["+agentloop.type=verifiers", "+agentloop.environment=a"], "there is no chat template"),
        (
            [
                "+agentloop.type=single_turn",
                "agentloop.tools=[]",
                "+cluster.component_placement.tools=1",
            ],
            "workers of tools would have nothing to do",
        ),
    ],
)
def test_mistakes_are_named(overrides, said):
    with pytest.raises(ConfigError) as caught:
        check(*overrides)
    assert said in str(caught.value)


def test_tools_may_have_settings_servers_and_workers():
    cfg = check(
        "agentloop.tools=[]",
        "+agentloop.mcp_servers={shop: {command: python, args: [-m, shop]}}",
        "+agentloop.tool_settings={price: {timeout: 1, idempotent: true}}",
        "+cluster.component_placement.tools=1-2",
        "+tools.max_restarts=3",
    )
    assert cfg.agentloop.mcp_servers.shop.start_timeout == 30.0
    assert cfg.agentloop.tool_settings.price.retries is None and cfg.tools.max_restarts == 3


def test_loops_over_environments_have_keys_of_their_own():
    cfg = check("+agentloop.type=env", "+agentloop.env=rooms", "agentloop.tools=[]")
    assert cfg.agentloop.env_options == {}
    assert check("+agentloop.type=attempts", "agentloop.tools=[]").agentloop.discount == 1.0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["agentloop.worker_prompt=find"], "has no {task}"),
        (["+agentloop.worker_max_tokens=65"], "more than runner.seq_length"),
        (["agentloop.max_workers=0"], "greater than 0"),
        (["agentloop.tools=[]"], "the loop of type team needs one"),
        (["agentloop.parser=qwen"], "there is no chat template"),
        (["agentloop.type=tools"], "'agentloop' has no 'max_workers'"),
        (["+algorithm.loss_scales=[agent_level]"], "loss_agg_func is token-mean"),
        (["+algorithm.advantage_mode=turns"], "trajectory, turn, agent"),
        (["data.max_items=9"], "at most 8"),
    ],
)
def test_mistakes_of_teams_are_named(overrides, said):
    with pytest.raises(ConfigError) as caught:
        validate_cfg(build_config("wideseek_small", overrides, CONFIGS))
    assert said in str(caught.value)


def test_one_agent_and_a_team_have_the_same_questions_and_contexts():
    one, team = (
        validate_cfg(build_config(name, [], CONFIGS))
        for name in ("wideseek_single", "wideseek_small")
    )
    assert one.agentloop.max_total_tokens == team.agentloop.max_total_tokens == 64
    assert one.data.max_items == team.data.max_items and one.actor == team.actor
    assert not one.data.team and team.data.team


def test_a_loop_without_tools_needs_none():
    assert check("+agentloop.type=single_turn", "agentloop.tools=[]").agentloop.tools == []


EVALUATION = [
    "runner.task_type=reasoning_eval",
    "+runner.ckpt_path=logs/calculator_agent",
]


def test_agents_are_evaluated_without_an_actor():
    cfg = check(*EVALUATION, "agentloop.eval_without_tools=false")
    assert cfg.runner.only_eval and cfg.agentloop.tools == ["calculator"]
    with pytest.raises(ConfigError, match="did you mean 'calculator'"):
        check(*EVALUATION, "agentloop.tools=[calculater]")
    # Language models of one turn have no such section.
    assert check(*EVALUATION, "~agentloop").agentloop is None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["~agentloop.search"], "nothing says what is searched"),
        (["agentloop.tools=[calculator]"], "agentloop.tools does not name"),
        (["+agentloop.search.url=http://a", "+agentloop.search.index=b"], "keep one of them"),
        (["+agentloop.search.url=http://a"], "let all episodes wait"),
        (["+agentloop.search.embeddings=a"], "agentloop.search.encoder"),
        (["+agentloop.search.encoder=a"], "agentloop.search.embeddings"),
        (
            ["+agentloop.search.encoder=a", "+agentloop.search.embeddings=b"],
            "no query_encoder is registered",
        ),
        (["agentloop.search.result='{txt}'"], "has the field {txt}"),
        (["agentloop.search.result='{text.__class__}'"], "has the field {text.__class__}"),
        (["agentloop.search.result='{'"], "is no template"),
        (["data.hops=[3]"], "data.hops"),
        (["+agentloop.search.topk=4"], "did you mean 'top_k'"),
    ],
)
def test_mistakes_of_searches_are_named(overrides, said):
    with pytest.raises(ConfigError) as caught:
        check(*overrides, recipe="searchr1_small")
    assert said in str(caught.value)


def test_a_service_is_asked_from_threads():
    url = "http://127.0.0.1:8000/retrieve"
    changes = [f"+agentloop.search.url={url}", "agentloop.search.inline=false"]
    assert check(*changes, recipe="searchr1_small").agentloop.search.url == url
