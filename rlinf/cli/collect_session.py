"""One call of `rlinf collect`: env, expert and dataset, what is shown, and what is left behind."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from rlinf.config.env_plugins import is_folder
from rlinf.config.task_types import FROM_DATA
from rlinf.data.collect.collector import Collected, Collector, NotEnoughEpisodes
from rlinf.data.collect.noise import ActionNoise
from rlinf.data.collect.recording import EpisodeFrames, dataset_features
from rlinf.data.demonstrations.rewards import FACTS, reward_settings
from rlinf.data.lerobot.errors import arrow
from rlinf.data.lerobot.transitions import ACTION
from rlinf.data.lerobot.writer import DatasetWriter
from rlinf.envs import VectorEnv, get_env_cls
from rlinf.envs.experts import Expert, make_expert
from rlinf.envs.rendering import choose_backend
from rlinf.utils.progress import Progress
from rlinf.workers.env.policy_expert import PolicyExpert

_ATTEMPTS = 10


class CollectSession:
    """Collects episodes as the config says.

    Args:
        name: Of the config, for messages.
        cfg: The checked config.

    Raises:
        ValueError: The config does not say what is needed.
    """

    def __init__(self, name: str, cfg: Any) -> None:
        if cfg.get("env") is None or cfg.env.train is None:
            raise ValueError(f"{name} has no env.train, so there is nothing to collect episodes in")
        self._name, self._cfg = name, cfg
        self._own = own = cfg.collect
        if own is None or own.save_dir is None:
            raise ValueError("collect.save_dir says nowhere to write; set it to a new folder")
        self._folder = Path(own.save_dir)
        _require_new(self._folder)
        # Before episodes are played: what writes them has to be there.
        arrow()
        env, runner = cfg.env.train, cfg.runner
        seeds = (own.seed, env.seed, runner.seed)
        self._seed = next(seed for seed in seeds if seed is not None)
        self._levels = [own.noise] if isinstance(own.noise, float | int) else list(own.noise)
        if not self._levels:
            raise ValueError("collect.noise is an empty list; give a number, or some")
        self._attempts = own.max_attempts or _ATTEMPTS * own.episodes
        if self._attempts < own.episodes:
            raise ValueError(
                f"collect.max_attempts is {self._attempts}, fewer than collect.episodes, which is "
                f"{own.episodes}"
            )
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> CollectSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def run(self) -> int:
        """Play and write; return the exit code."""
        own = self._cfg.collect
        env = self._make_env()
        expert = self._make_expert(env)
        writer = self._resources.enter_context(self._make_writer(env))
        progress = Progress(own.episodes, self._cfg.runner.progress, unit="episode")
        self._resources.callback(progress.close)
        noise = ActionNoise(env.policy_spec, self._levels, self._seed)
        episodes: list[dict[str, Any]] = []

        def save(episode: EpisodeFrames) -> None:
            episode.write(writer)
            episodes.append(_entry(episode, noise))

        begin = time.perf_counter()
        collector = Collector(
            env,
            expert,
            noise,
            save,
            episodes=own.episodes,
            attempts=self._attempts,
            only_success=own.only_success,
            rate=own.fps if expert.realtime else None,
            watch=_Display(progress, begin),
        )
        status = 0
        try:
            collector.run()
        except KeyboardInterrupt:
            status = 130
            print("interrupted", file=sys.stderr)
        except NotEnoughEpisodes as error:
            status = 1
            print(f"rlinf collect: {error}", file=sys.stderr)
        progress.close()
        if episodes:
            self._write_facts(env, episodes)
        else:
            # It holds no episode, and would be in the way of the next attempt.
            writer.close()
            shutil.rmtree(self._folder)
        self._tell(collector.collected, time.perf_counter() - begin)
        return status

    # -- parts ----------------------------------------------------------------------------------

    def _make_env(self) -> VectorEnv:
        own, section = self._cfg.collect, copy.deepcopy(self._cfg.env.train)
        OmegaConf.set_readonly(section, False)
        # An episode is what its number says, whatever training does with its envs.
        section.group_size, section.seed, section.auto_reset = 1, self._seed, True
        section.use_ordered_reset_state_ids = section.use_fixed_reset_state_ids = False
        if "on_nan" in section and section.on_nan is None:
            section.on_nan = {"stop": "error", "skip": "skip"}[self._cfg.runner.on_nan]
        OmegaConf.set_readonly(section, True)
        if section.get("obs_mode", "state") != "state":
            choose_backend()
        count = own.num_envs or min(section.total_num_envs, own.episodes)
        if own.num_envs is None and _is_realtime(own.policy, section):
            count = 1
        env = get_env_cls(section.env_type, section)(section, count)
        self._resources.callback(env.close)
        if env.max_episode_steps is None:
            raise ValueError(
                f"nobody says how long an episode is: {section.env_type} has no step limit of its "
                "own; set env.train.max_episode_steps"
            )
        return env

    def _make_expert(self, env: VectorEnv) -> Expert:
        own, name = self._cfg.collect, self._cfg.collect.policy
        arguments = (env.cfg, env.action_spec)
        further = {"num_envs": env.num_envs, "seed": self._seed}
        if is_folder(name):
            expert: Expert = PolicyExpert.load(name, env, sample=own.sample, seed=self._seed)
        else:
            expert = make_expert(name, *arguments, **further)
        self._resources.callback(expert.close)
        return expert

    def _make_writer(self, env: VectorEnv) -> DatasetWriter:
        own, spec = self._cfg.collect, env.policy_spec
        return DatasetWriter.create(
            self._folder,
            own.fps,
            dataset_features(env, own.image_format),
            robot_type=env.options.env_type,
            clip={ACTION: (spec.low, spec.high)},
            final_observations=True,
        )

    # -- what is left behind --------------------------------------------------------------------

    def _write_facts(self, env: VectorEnv, episodes: list[dict[str, Any]]) -> None:
        own = self._cfg.collect
        facts = {
            "config": self._name,
            "env_type": env.options.env_type,
            "tasks": env.task_names,
            "policy": own.policy,
            "reward": reward_settings(self._cfg.env.train),
            "seed": self._seed,
            "noise": self._levels,
            "only_success": own.only_success,
            "max_episode_steps": env.max_episode_steps,
            "episodes": episodes,
        }
        (self._folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")

    def _tell(self, found: Collected, seconds: float) -> None:
        if not found.kept:
            print("no episode was written")
            return
        rate = found.successes / found.kept
        print(
            f"{found.kept} episodes, {found.frames} frames, in {self._folder} "
            f"({found.played} played in {seconds:.1f} s, {found.steps / seconds:,.0f} steps/s)"
        )
        print(f"success {rate:.0%}, mean return {np.mean(found.returns):.1f}")
        if found.dropped:
            print(f"left out because of a NaN: {found.dropped}")
        print(f"look at it: python -m rlinf.data.lerobot info {self._folder}")
        if self._cfg.runner.task_type in FROM_DATA:
            print(f"learn from it: rlinf train {self._name} data.train_data_paths=[{self._folder}]")


class _Display:
    """Shows what has been kept, not more often than it changes or a second passes."""

    def __init__(self, progress: Progress, begin: float) -> None:
        self._progress, self._begin = progress, begin
        self._shown: tuple[int, int] = (-1, -1)

    def __call__(self, found: Collected) -> None:
        seconds = time.perf_counter() - self._begin
        if (found.kept, int(seconds)) == self._shown:
            return
        self._shown = found.kept, int(seconds)
        facts = {"env steps": f"{found.steps:,}", "speed": f"{found.steps / seconds:,.0f}/s"}
        if found.kept:
            facts["success"] = f"{found.successes / found.kept:.0%}"
        if found.played > found.kept:
            facts["played"] = str(found.played)
        self._progress.show(found.kept, facts)


def _entry(episode: EpisodeFrames, noise: ActionNoise) -> dict[str, Any]:
    return {
        "number": episode.number,
        "length": len(episode.frames),
        "return": round(episode.total, 6),
        "success": episode.success,
        "noise": noise.level(episode.number),
    }


def _require_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"collect.save_dir {folder} is there already, and nothing is overwritten: name another "
            "folder, or delete that one; `python -m rlinf.data.lerobot merge` joins datasets"
        )


def _is_realtime(policy: str, section: Any) -> bool:
    """Return whether whoever acts is a person at a device, who moves one env."""
    from rlinf.envs.experts import is_realtime

    return not is_folder(policy) and is_realtime(policy, section.env_type)
