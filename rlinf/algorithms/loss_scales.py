"""How much each turn of an episode of several agents weighs in the loss.

With l_t the loss of a token, T the tokens of a turn that count, K the turns of an agent and A the
agents of an episode that have such tokens,

    L = Σ_episodes Σ_agents Σ_turns c · (Σ_t l_t / T) / D

    c = 1                       each turn counts alike
    c = 1 / (A K)               with `agent_level`
    c = T / (A Σ_turns T)       with `agent_level` and `turn_level`
    c = K T / Σ_turns T         with `turn_level` alone
    D = turns, or with `group_level` episodes, of the global batch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.config.checks_agents import LEVELS


@dataclass(frozen=True)
class LossScales:
    """What R response tokens weigh.

    Attributes:
        weights: c / T of the turn of each token, float32 `[R]`; 0 where it does not count.
        shares: what each token adds to D, float64 `[R]`; sums over any parts of a batch add up.
    """

    weights: Tensor
    shares: Tensor


def check_levels(levels: Sequence[str]) -> str:
    """Return what is wrong with the names of levels; empty if nothing is."""
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        return f"has {', '.join(unknown)}; allowed: {', '.join(LEVELS)}"
    if list(levels) != [level for level in LEVELS if level in levels]:
        return f"must name each level once, in the order {', '.join(LEVELS)}"
    return ""


def loss_scales(
    levels: Sequence[str], *, episodes: Tensor, agents: Tensor, turns: Tensor, mask: Tensor
) -> LossScales:
    """Return what tokens weigh; the order of tokens has no effect.

    Args:
        levels: Some of `rlinf.config.checks_agents.LEVELS`, in their order.
        episodes: Number of the episode of each token, int64 `[R]`.
        agents: Number of its agent in the episode, int64 `[R]`.
        turns: Number of its turn in the episode, int64 `[R]`; a turn is of one agent.
        mask: Whether it counts in the loss, bool `[R]`.

    Raises:
        ValueError: The levels are not known, or in another order.
    """
    problem = check_levels(levels)
    if problem:
        raise ValueError(f"algorithm.loss_scales {problem}")
    where = mask.nonzero().squeeze(1)
    episode, agent, turn = (tensor[where] for tensor in (episodes, agents, turns))
    of_turn, tokens = _counted(episode, turn)
    # The first token of a turn, or of an agent, stands for all of it.
    first = _first(of_turn)
    agent_of_turn, turns_of_agent = _counted(episode[first], agent[first])
    of_agent = agent_of_turn[of_turn]
    turns_of_agent = turns_of_agent[of_agent]
    tokens_of_agent = torch.bincount(of_agent)[of_agent]
    tokens = tokens[of_turn].double()
    scale = torch.ones_like(tokens)
    if "agent_level" in levels:
        begins = _first(of_agent)
        of_episode, agents_of_episode = _counted(episode[begins])
        scale = 1.0 / (agents_of_episode[of_episode][of_agent] * turns_of_agent)
    if "turn_level" in levels:
        scale = scale * turns_of_agent * tokens / tokens_of_agent
    if "group_level" in levels:
        of_episode, tokens_of_episode = _counted(episode)
        share = 1.0 / tokens_of_episode[of_episode].double()
    else:
        share = 1.0 / tokens
    weights, shares = (torch.zeros(len(mask), dtype=torch.float64) for _ in range(2))
    weights[where], shares[where] = scale / tokens, share
    return LossScales(weights.float(), shares)


def _counted(*names: Tensor) -> tuple[Tensor, Tensor]:
    """Number equal names, int64 `[R]`, and count each, int64 `[groups]`."""
    table = torch.stack(names)
    if not table.shape[1]:
        return table[0], table[0]
    _, ids, counts = torch.unique(table, dim=1, return_inverse=True, return_counts=True)
    return ids, counts


def _first(ids: Tensor) -> Tensor:
    """Return the place of the first entry of each group, by number, int64 `[groups]`."""
    count = int(ids.max()) + 1 if len(ids) else 0
    places = torch.arange(len(ids))
    out = torch.full((count,), len(ids), dtype=torch.int64)
    return out.scatter_reduce(0, ids, places, "amin")
