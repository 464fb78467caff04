"""Groups of episodes with several turns and agents, to learn from: what the tests share."""

from __future__ import annotations

import random
from typing import Any

import torch

from rlinf.agents.calls import EngineCall
from rlinf.agents.trajectory import Trajectory
from rlinf.data.reasoning import GroupRequest, Prompt, SampleGroup
from rlinf.models.causal_lm.layout import Sequences
from rlinf.models.causal_lm.model import CausalLM
from rlinf.workers.rollout.episode_samples import group_of_episodes
from tests.unit_tests.workers.actor.reasoning import VOCABULARY

AGENTS: dict[str, Any] = {"runner.task_type": "agent", "agentloop": {"type": "single_turn"}}


def make_episodes(
    model: CausalLM | None = None, seed: int = 0, count: int = 3, size: int = 4, given: bool = True
) -> list[SampleGroup]:
    """Episodes in which agents take turns at random, with rewards of some turns.

    Args:
        model: gives the log-probabilities; None makes them up.
        seed: of what is drawn.
        count: groups.
        size: episodes of a group.
        given: whether turns have rewards of their own.
    """
    draw = random.Random(seed)

    def tokens(length: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(length)]

    groups = []
    for index in range(count):
        prompt = Prompt(100 * seed + index, tokens(2), "", None, "test", {})
        played = []
        for _ in range(size):
            calls: list[EngineCall] = []
            ends: dict[int, list[int]] = {}
            rewards = {}
            for turn in range(draw.randint(1, 5)):
                agent = draw.randint(0, 2)
                read = [*ends.get(agent, [*prompt.token_ids, agent]), *tokens(draw.randint(1, 2))]
                written = tokens(draw.randint(1, 3))
                logprobs = [-draw.random() for _ in written]
                calls.append(
                    EngineCall(read, written, logprobs, [0] * len(written), "stop", turn, agent)
                )
                ends[agent] = [*read, *written]
                if given and draw.random() < 0.5:
                    rewards[turn] = draw.choice([-0.5, 0.25, 1.0])
            played.append(Trajectory(calls, rewards=rewards))
        group = group_of_episodes(GroupRequest(prompt, size, 0), played, "score")
        worth = [float(draw.randrange(3)) for _ in range(size)]
        for sample in group.samples:
            sample.reward = worth[sample.trajectory]
            if model is not None:
                sample.logprobs = _logprobs(model, sample)
        groups.append(group)
    return groups


def _logprobs(model: CausalLM, sample: Any, temperature: float = 0.8) -> list[float]:
    with torch.no_grad():
        ids = torch.tensor(sample.prompt_ids + sample.response_ids)
        lengths = (len(sample.prompt_ids), len(sample.response_ids))
        out = model(Sequences(ids, *(torch.tensor([n]) for n in lengths)), temperature=temperature)
    return out["logprobs"].tolist()
