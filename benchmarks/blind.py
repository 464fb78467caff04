"""Which tasks can be done without looking? Plays motions of the expert from other starts.

Usage, from the root of the repository:

    python -m benchmarks.blind door-lock-v3 door-unlock-v3
    python -m benchmarks.blind --motions 20 --starts 40 faucet-open-v3

A policy that sees nothing of where things are can do no more than a fixed motion. Each motion is
what MetaWorld's scripted policy does in one episode; it is played as it is from starts of other
episodes. The best of the motions tells how much of a success is none of the camera's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence

import torch

from rlinf.envs import get_env_cls, make_expert
from rlinf.envs.base import VectorEnv

Act = Callable[[dict, int], torch.Tensor]
"""Returns the actions `[B, A]` for observations at a step."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", metavar="TASK")
    parser.add_argument("--motions", type=int, default=10, help="episodes of the expert (10)")
    parser.add_argument("--starts", type=int, default=20, help="that each is played from (20)")
    parser.add_argument("--steps", type=int, default=140, help="of an episode (140)")
    args = parser.parse_args(arguments)
    print("| task | expert | its motions from other starts, mean | best |")
    print("|---|---:|---:|---:|")
    for task in args.tasks:
        expert, motions = shares(task, args.motions, args.starts, args.steps)
        row = (f"{share:.0%}" for share in (expert, statistics.fmean(motions), max(motions)))
        print(f"| {task} | {' | '.join(row)} |", flush=True)
    return 0


def shares(task: str, motions: int, starts: int, steps: int) -> tuple[float, list[float]]:
    """Return the success of the expert, and of each of its motions from other starts."""
    shown, others = (_env(task, slots, steps) for slots in (motions, starts))
    expert = make_expert("scripted", shown.cfg, shown.action_spec, num_envs=motions)
    recorded: list[torch.Tensor] = []

    def act(obs: dict, step: int) -> torch.Tensor:
        actions = expert.act(shown.expert_obs(obs), range(motions))
        recorded.append(torch.as_tensor(actions).clamp(-1, 1))
        return recorded[-1]

    success = _play(shown, range(motions), act)
    found = []
    for motion in range(motions):

        def again(obs: dict, step: int, motion: int = motion) -> torch.Tensor:
            return recorded[step][motion].expand(starts, -1)

        found.append(_play(others, range(motions, motions + starts), again))
    return success, found


def _env(task: str, slots: int, steps: int) -> VectorEnv:
    cfg = {"env_type": "metaworld", "task": task, "goals": "random"}
    cfg |= {"max_episode_steps": steps, "terminate_on_success": False}
    return get_env_cls("metaworld")(cfg, slots)


def _play(env: VectorEnv, numbers: range, act: Act) -> float:
    obs, infos = env.begin_episodes(numbers)
    for step in range(env.max_episode_steps):
        obs_list, *_, all_infos = env.chunk_step(act(obs, step)[:, None])
        obs, infos = obs_list[-1], all_infos[-1]
    return float(infos["episode"]["success_once"].float().mean())


if __name__ == "__main__":
    sys.exit(main())
