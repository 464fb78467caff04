"""Rules between the keys of an agent's config."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.config import ConfigError, build_config, validate_cfg

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "agents" / "config"


def check(*overrides):
    return validate_cfg(build_config("calculator_agent", list(overrides), CONFIGS))


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
