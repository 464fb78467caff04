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
    ],
)
def test_mistakes_are_named(overrides, said):
    with pytest.raises(ConfigError) as caught:
        check(*overrides)
    assert said in str(caught.value)


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
