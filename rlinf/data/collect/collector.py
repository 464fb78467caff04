"""Plays numbered episodes and keeps those that are wanted, in order.

The episodes are those of training: an evaluation has other starts. Which of them become part of the
dataset, and in which order, is the same however many envs are stepped together: an episode is
written when all before it are known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf.data.collect.noise import ActionNoise
from rlinf.data.collect.recording import EpisodeFrames, frame_of
from rlinf.envs.base import VectorEnv
from rlinf.envs.experts import Expert

Save = Callable[[EpisodeFrames], None]
"""Makes an episode part of the dataset."""


class NotEnoughEpisodes(ValueError):
    """Fewer episodes than were asked for are worth keeping."""


@dataclass
class Collected:
    """What has been played and kept so far.

    Attributes:
        wanted: Episodes to keep.
        kept: Episodes that were kept.
        played: Episodes that were played to their end.
        successes: Of the episodes that were kept, those that solved their task.
        steps: Env steps that were made.
        frames: Of the episodes that were kept.
        returns: Of the episodes that were kept.
        numbers: Of the episodes that were kept.
        dropped: Episodes that were given up because of a NaN.
    """

    wanted: int
    kept: int = 0
    played: int = 0
    successes: int = 0
    steps: int = 0
    frames: int = 0
    returns: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    dropped: int = 0


class Collector:
    """Lets an expert, or a policy that stands for one, act in the envs of one process.

    Args:
        env: The envs.
        expert: Who acts.
        noise: What is added to its actions.
        save: Makes an episode part of the dataset.
        episodes: How many to keep.
        attempts: How many to play at most.
        only_success: Keep only those that solved their task.
        rate: Steps per second to keep to; None is as fast as it goes.
        watch: Is told what there is so far, after each step.
    """

    def __init__(
        self,
        env: VectorEnv,
        expert: Expert,
        noise: ActionNoise,
        save: Save,
        *,
        episodes: int,
        attempts: int,
        only_success: bool = False,
        rate: float | None = None,
        watch: Callable[[Collected], None] = lambda collected: None,
    ) -> None:
        self._env, self._expert, self._noise, self._save = env, expert, noise, save
        self._attempts, self._only_success = attempts, only_success
        self._period, self._watch = 0.0 if rate is None else 1.0 / rate, watch
        self.collected = Collected(episodes)
        self._playing: dict[int, EpisodeFrames] = {}
        self._ended: dict[int, EpisodeFrames | None] = {}
        self._given = self._begun = self._next = 0

    def run(self) -> Collected:
        """Play until enough episodes are kept.

        Raises:
            NotEnoughEpisodes: All attempts are used up before.
        """
        collected = self.collected
        while collected.kept < collected.wanted:
            never = self._only_success and not self._env.reports_success and self._given
            if self._given == self._attempts or never:
                raise NotEnoughEpisodes(self._why_not_enough())
            self._play_round()
        return collected

    def _play_round(self) -> None:
        """Play as many episodes as would be enough if all of them were kept."""
        env, begun = self._env, self._given
        self._given += min(
            self.collected.wanted - self.collected.kept, self._attempts - self._given
        )
        if env.chooses_starts:
            obs, _ = env.begin_episodes(range(begun, self._given), evaluation=False)
        else:
            obs, _ = env.reset()
        self._begin(list(range(env.num_envs)), obs)
        while self._playing:
            begin = time.perf_counter()
            obs = self._step(obs)
            self._keep()
            self._watch(self.collected)
            left = self._period - (time.perf_counter() - begin)
            if left > 0:
                time.sleep(left)

    def _begin(self, slots: list[int], obs: dict[str, Any]) -> None:
        """Take note of the episodes that begin in slots."""
        begun: dict[int, int] = {}
        for slot in slots:
            number = self._number(slot)
            if number is not None:
                begun[slot] = number
                words = obs["task_descriptions"][slot] or self._env.task_names[0]
                self._playing[slot] = EpisodeFrames(number, words)
                self._noise.begin(slot, number)
        if begun:
            self._expert.begin(list(begun), list(begun.values()))

    def _number(self, slot: int) -> int | None:
        """Return the number of the episode that begins in a slot; None if none does."""
        if self._env.numbered:
            episode = self._env.playing[slot]
            return None if episode is None else episode.number
        if self._begun == self._given:
            return None
        self._begun += 1
        return self._begun - 1

    def _step(self, obs: dict[str, Any]) -> dict[str, Any]:
        env, spec = self._env, self._env.policy_spec
        slots = sorted(self._playing)
        actions = np.zeros((env.num_envs, spec.dim), spec.dtype)
        actions[:] = np.where(np.isfinite(spec.low), spec.low, 0)
        if self._expert.is_policy:
            chosen = self._expert.act(obs, slots)
        else:
            chosen = env.policy_actions(self._expert.act(env.expert_obs(obs), slots))
        for slot, action in zip(slots, chosen, strict=True):
            actions[slot] = self._noise.apply(slot, action)
        after, rewards, terminations, truncations, infos = env.step(actions, auto_reset=True)
        flags = infos.get("intervene_flag")
        for slot in slots:
            intervened = flags is not None and bool(flags[slot])
            done = np.asarray(infos["intervene_action"][slot]) if intervened else actions[slot]
            self._playing[slot].add(
                frame_of(obs, slot, env.obs_spec),
                done,
                float(rewards[slot]),
                success=bool(infos["success"][slot]),
                terminated=bool(terminations[slot]),
                truncated=bool(truncations[slot]),
                intervened=intervened,
            )
        self.collected.steps += len(slots)
        if "_final_observation" in infos:
            self._end(infos, after)
        return after

    def _end(self, infos: dict[str, Any], after: dict[str, Any]) -> None:
        """Take note of the episodes that ended, and of those that begin after them."""
        ended = infos["_final_observation"].nonzero().flatten().tolist()
        ended = [slot for slot in ended if slot in self._playing]
        for slot in ended:
            episode = self._playing.pop(slot)
            if infos["_episode"][slot]:
                final = infos["final_observation"]
                episode.final = frame_of(final, slot, self._env.obs_spec)
                episode.discarded = self._expert.discards(slot)
                self._ended[episode.number] = episode
            elif not self._plays_again(slot, episode.number):
                self.collected.dropped += 1
                self._ended[episode.number] = None
        self._begin(ended, after)

    def _plays_again(self, slot: int, number: int) -> bool:
        """Return whether the episode is played once more, as its simulator failed."""
        again = self._env.playing[slot] if self._env.numbered else None
        return again is not None and again.number == number

    def _keep(self) -> None:
        """Keep the episodes that all before them are known of."""
        collected = self.collected
        while self._next in self._ended:
            episode = self._ended.pop(self._next)
            self._next += 1
            if episode is None:
                continue
            collected.played += 1
            if episode.discarded or (self._only_success and not episode.success):
                continue
            self._save(episode)
            collected.kept += 1
            collected.successes += episode.success
            collected.frames += len(episode.frames)
            collected.returns.append(episode.total)
            collected.numbers.append(episode.number)

    def _why_not_enough(self) -> str:
        found, limit = self.collected, self._env.max_episode_steps
        if self._only_success and not self._env.reports_success:
            name = self._env.options.env_type
            return (
                f"{name} does not say whether a task is solved, so collect.only_success keeps no "
                "episode; leave it out"
            )
        what = "that solved their task " if self._only_success else ""
        return (
            f"only {found.kept} of {found.wanted} episodes {what}came of {self._attempts} that "
            f"were played; look at what the expert does in them, give it more than {limit} steps "
            "with env.train.max_episode_steps, raise collect.max_attempts, or lower collect.noise"
        )
