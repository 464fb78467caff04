"""The env worker: simulates, asks for actions, and tells the actor what came of them."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf.config.acting import decided_in_rollouts
from rlinf.config.scoring import env_trajectory_receiver, uses_reward_model
from rlinf.config.task_types import OFFLINE
from rlinf.data.embodied import split_trajectory
from rlinf.data.embodied_messages import (
    ACTIONS,
    ENV_TRAJECTORY,
    EPISODES,
    EVALUATION,
    OBSERVATIONS,
    OVER,
    Obs,
    pack_observations,
    split_observations,
)
from rlinf.envs import can_render, get_env_cls
from rlinf.envs.rendering import choose_backend
from rlinf.envs.start_samplers.base import EpisodeOutcome, list_outcomes
from rlinf.scheduler import Worker
from rlinf.scheduler.worker.file_places import place_to_write
from rlinf.utils.checkpoint import load_tree, save_tree
from rlinf.utils.determinism import be_deterministic
from rlinf.utils.env_spec import EnvSpec, rollout_steps
from rlinf.workers.checkpointed import Checkpointed, Job
from rlinf.workers.env.describe_envs import check_evaluation, describe_envs
from rlinf.workers.env.early_observations import early_observation
from rlinf.workers.env.env_settings import env_settings
from rlinf.workers.env.episode_player import EpisodePlayer, Played
from rlinf.workers.env.stage_experts import StageExperts
from rlinf.workers.env.trajectory_recorder import TrajectoryRecorder


class EnvWorker(Checkpointed, Worker):
    """Holds one vector env per pipeline stage.

    While the policy looks at the observations of one stage, the worker steps another. Messages go
    point to point to the rollout workers that serve these envs.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        torch.set_num_threads(1)
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, "env", self._rank)
        self.cfg = cfg
        self.stages = cfg.rollout.pipeline_stage_num
        self._train: list[Any] = []
        self._eval: list[Any] = []
        self._fresh = [True] * self.stages
        self._experts = StageExperts([])
        self._lost: list[str] = []

    # -- setting up -----------------------------------------------------------------------------

    @classmethod
    def restart_policy(cls, cfg: Any) -> str | dict[str, int]:
        """Crashed simulators take their process with them; `max_restarts` of these come back."""
        budget = max_env_restarts(cfg)
        return {"on_failure": budget} if budget else "never"

    def init_worker(self) -> EnvSpec:
        """Make the simulators, unless they are there, and describe them."""
        if not (self._train or self._eval):
            self._make_all()
        return describe_envs(self._train, self._eval)

    def _make_all(self) -> None:
        self._video = self._prepare_video()
        train: list[Any] = []
        evaluation: list[Any] = []
        # All or none: who is interrupted here makes all of them the next time.
        with contextlib.ExitStack() as made:
            if self._trains:
                train = self._make(env_settings(self.cfg, "train"), self.stages, made)
            if self.cfg.env.eval is not None:
                settings = env_settings(self.cfg, "eval")
                settings = settings if self._video[0] else _without_video(settings)
                evaluation = self._make(settings, 1, made)
                check_evaluation(evaluation[0])
                self._compare_starts(train, evaluation[0])
            self._offload(self.cfg.env.train, train)
            self._offload(self.cfg.env.eval, evaluation)
            made.pop_all()
            self._train, self._eval = train, evaluation
        self._experts = StageExperts.of(self.cfg, train, self._rank, self._world_size)

    @property
    def _trains(self) -> bool:
        """Whether there are envs to train in: not if all is learned from data."""
        runner = self.cfg.runner
        idle = runner.only_eval or runner.task_type in OFFLINE
        return self.cfg.env.train is not None and not idle

    def _compare_starts(self, train: list[Any], evaluation: Any) -> None:
        """Warn if evaluations begin in the states in which training begins."""
        starts = evaluation.start_list(evaluation=True)
        if train and self._rank == 0 and starts is not None:
            if train[0].start_list(evaluation=False) == starts:
                self.log_warning(
                    "evaluations begin in the same states as training: their success says nothing "
                    "of other states"
                )

    def _prepare_video(self) -> tuple[bool, str]:
        """Return whether this rank draws videos, or why not; a run goes on without."""
        cfg = self.cfg.env.eval
        if cfg is None or not cfg.video_cfg.save_video:
            return False, "env.eval.video_cfg.save_video is off"
        if self._rank != 0:
            return False, "rank 0 draws"
        able, reason = can_render()
        if able:
            # Before the first simulator is made: MuJoCo picks its back-end when it is imported.
            choose_backend()
        return able, reason

    def _make(self, cfg: Any, stages: int, made: contextlib.ExitStack) -> list[Any]:
        """Make the env of each stage; `made` closes those that are of no use in the end."""
        env_cls = get_env_cls(cfg.env_type, cfg)
        parts = self._world_size * stages
        count = cfg.total_num_envs // parts
        envs = []
        for stage in range(stages):
            env = env_cls(
                cfg,
                num_envs=count,
                seed_offset=self._rank * stages + stage,
                total_num_processes=parts,
                worker_info=self.worker_info,
            )
            made.callback(env.close)
            envs.append(env)
        return envs

    def start_over(self) -> None:
        """Let the next rollout begin with new episodes."""
        self._fresh = [True] * self.stages

    def rollouts(self) -> int:
        """Return the rollouts that were played to their end, which choose when experts act."""
        return self._experts.rollouts

    def set_rollouts(self, count: int) -> None:
        """Go on as a worker that has played so many: this process may be a new one."""
        self._experts.rollouts = count

    def _made(self, envs: list[Any]) -> list[Any]:
        if not envs:
            raise RuntimeError(
                f"env worker {self._rank} has no simulators (restarts so far: {self.restarts}); "
                "call init_worker first"
            )
        return envs

    def _onload(self, cfg: Any, envs: list[Any]) -> None:
        """Let envs take back what they gave up."""
        if envs and cfg.enable_offload:
            with self.worker_timer("onload"):
                for env in envs:
                    env.onload()

    def _offload(self, cfg: Any, envs: list[Any]) -> None:
        """Let envs leave the device to others, if the config says so."""
        if envs and cfg.enable_offload:
            with self.worker_timer("offload"):
                for env in envs:
                    env.offload()

    # -- training rollouts ------------------------------------------------------------------------

    @Worker.timer("interact")
    def interact(
        self, task_weights: Sequence[float] | None = None, number: int = 0
    ) -> dict[str, Any]:
        """Play one rollout with the rollout group and send its half of it to the actor group.

        With a reward model, that half goes to the reward group, which sends it on.

        Args:
            task_weights: how often tasks are played from now on; None leaves it as it is.
            number: what the driver knows the rollout by.

        Returns:
            Metrics of the episodes that ended, sums and counts, their outcomes if there are several
            tasks, and the env steps made.
        """
        cfg = self.cfg.env.train
        envs = self._made(self._train)
        if task_weights is not None:
            for env in envs:
                env.set_task_weights(task_weights)
        self._onload(cfg, envs)
        chunks = rollout_steps(cfg, envs[0].max_episode_steps) // self._chunk_len
        metrics = _EpisodeMetrics(by_task=len(envs[0].task_names) > 1)
        receiver, scored = env_trajectory_receiver(self.cfg), uses_reward_model(self.cfg)
        auto_reset, steps, early = cfg.auto_reset, 0, decided_in_rollouts(self.cfg)
        for env in envs:
            env.early = early
        self._rollout_number = number
        self._begin_rollout(chunks)
        self._experts.begin_rollout(cfg.rollout_epoch, chunks)
        for epoch in range(cfg.rollout_epoch):
            self._begin_epoch()
            recorders = [
                TrajectoryRecorder(self._fresh[stage] or env.is_start, env.reports_success)
                for stage, env in enumerate(envs)
            ]
            observed = []
            for stage, env in enumerate(envs):
                observed.append(self._first_obs(stage, env))
                self._send_obs(stage, observed[stage], None)
            for chunk in range(chunks):
                for stage, env in enumerate(envs):
                    actions = self._recv_actions(stage, epoch, chunk)
                    if not actions.shape[1]:
                        continue
                    seen = observed[stage]
                    decision = self._experts.decide(stage, seen, actions, epoch, chunk)
                    actions = actions if decision is None else decision.actions
                    with self.worker_timer("env_step"):
                        obs, rewards, terms, truncs, infos = env.chunk_step(actions)
                    recorders[stage].add(
                        actions, rewards, terms, truncs, infos, auto_reset, decision
                    )
                    if scored:
                        recorders[stage].add_outcome(obs[-1], infos[-1])
                    self._experts.note_ends(stage, terms, truncs, auto_reset)
                    observed[stage] = obs[-1]
                    ahead = early_observation(seen, obs, infos[-1], early) if early else None
                    self._send_obs(stage, obs[-1], infos[-1], ahead)
                    metrics.add(infos[-1], stage, env.reports_success)
                if not actions.shape[1]:
                    # Others wait for what there is: episodes go on in the next rollout.
                    break
            for stage, recorder in enumerate(recorders):
                self.send_to(
                    receiver,
                    None,
                    recorder.finish(),
                    route_key=(epoch, stage),
                    tag=ENV_TRAJECTORY,
                    batch_size=cfg.total_num_envs // self.stages,
                    split_fn=split_trajectory,
                )
                steps += recorder.env_steps
            self._end_epoch(epoch, chunks)
            if not auto_reset:
                self._fresh = [True] * self.stages
        self._end_rollout()
        self._experts.end_rollout()
        self._offload(cfg, envs)
        return metrics.result() | {"env_steps": steps}

    @property
    def _chunk_len(self) -> int:
        return self.cfg.actor.model.num_action_chunks

    def _first_obs(self, stage: int, env: Any) -> dict[str, Any]:
        if self._fresh[stage] or env.is_start:
            self._fresh[stage] = False
            self._experts.restart(stage)
            env.update_reset_state_ids()
            return env.reset()[0]
        return env.last_obs

    # What follows is how the policy is reached; here, in the processes of the rollout group.

    def _begin_rollout(self, chunks: int) -> None:
        """Get ready for a rollout of so many chunk steps per epoch."""

    def _begin_epoch(self) -> None:
        """Get ready for an epoch of the rollout."""

    def _send_obs(self, stage: int, obs: Obs, infos: Any, early: Obs | None = None) -> None:
        """Give the policy the observations of a stage.

        Args:
            stage: whose.
            obs: the observations.
            infos: of the chunk that led to them; None at the beginning.
            early: what plans are made from; None is `obs`.
        """
        self.send_to(
            self.cfg.rollout.group_name,
            None,
            self._pack(stage, obs, infos, early),
            route_key=stage,
            tag=OBSERVATIONS,
            batch_size=self.cfg.env.train.total_num_envs // self.stages,
            split_fn=split_observations,
        )

    def _pack(self, stage: int, obs: Obs, infos: Any, early: Obs | None) -> Obs:
        """Return the observations of a stage as a message; see `_send_obs`."""
        begins = self._train[stage].begins if infos is None else None
        return pack_observations(obs, infos, begins, early)

    def _recv_actions(self, stage: int, epoch: int, chunk: int) -> torch.Tensor:
        """Return the policy's actions for the last observations of a stage.

        Returns:
            `[B, C, A]`; without actions, C = 0, if the rollout ends with these observations, which
            it does for all stages alike.
        """
        return self._wait_actions(stage)

    def _end_epoch(self, epoch: int, chunks: int) -> None:
        """End an epoch: the policy has the observations that it ends with."""

    def _end_rollout(self) -> None:
        """End a rollout."""

    def _wait_actions(self, route: Any) -> torch.Tensor:
        begin = time.perf_counter()
        rollout = self.cfg.rollout.group_name
        actions = self.recv_from(rollout, None, route_key=route, tag=ACTIONS)
        self._add_time("wait_actions", begin)
        return actions

    def _add_time(self, tag: str, begin: float) -> None:
        from rlinf.scheduler.worker import timers

        store = timers.of_call()
        if store is not None:
            store[tag] = store.get(tag, 0.0) + time.perf_counter() - begin

    # -- evaluation -------------------------------------------------------------------------------

    @Worker.timer("evaluate")
    def evaluate(self, episodes: int) -> Played:
        """Play this rank's share of an evaluation, without learning.

        Args:
            episodes: those of all ranks together, numbered from 0.
        """
        begin, end = (episodes * part // self._world_size for part in (self._rank, self._rank + 1))
        return self._play(lambda player: player.play(range(begin, end)))

    def record(self, numbers: list[int], folder: str) -> Played:
        """Play episodes of an evaluation once more, on rank 0, and write a video of each.

        Args:
            numbers: which episodes.
            folder: where the videos go.
        """
        able, reason = self._video
        if self._rank != 0 or not able:
            return self._play(lambda _: Played(reason=reason))
        video = self.cfg.env.eval.video_cfg
        place = place_to_write(folder)
        played = self._play(
            lambda player: player.record(numbers, place, video.fps, video.info_on_video, stride=2)
        )
        # Where they are once the driver has taken them.
        played.videos = {n: str(Path(folder) / Path(p).name) for n, p in played.videos.items()}
        return played

    def _play(self, play: Callable[[EpisodePlayer], Played]) -> Played:
        """Let a player play, with the policy at hand until it is done."""
        env = self._made(self._eval)[0]
        self._onload(self.cfg.env.eval, self._eval)
        played = play(EpisodePlayer(env, self._ask))
        self._release_policy(env)
        self._offload(self.cfg.env.eval, self._eval)
        return played

    def _ask(self, obs: dict[str, Any]) -> torch.Tensor:
        """Return the policy's actions, without noise, for observations of the evaluation."""
        self._send_eval_obs(obs, over=False)
        return self._wait_actions(EVALUATION)

    def _release_policy(self, env: Any) -> None:
        """Let the policy go: no actions are wanted any more."""
        self._send_eval_obs(env.last_obs, over=True)

    def _episode_numbers(self) -> torch.Tensor:
        """Return the number of the episode that each env plays, -1 for none."""
        playing = self._eval[0].playing
        return torch.tensor([-1 if episode is None else episode.number for episode in playing])

    def _send_eval_obs(self, obs: dict[str, Any], over: bool) -> None:
        """Send observations and whose they are."""
        numbers = self._episode_numbers()
        message = pack_observations(obs, begins=self._eval[0].begins) | {
            EPISODES: numbers,
            OVER: torch.full((len(numbers),), over),
        }
        rollout = self.cfg.rollout.group_name
        self.send_to(rollout, None, message, route_key=EVALUATION, tag=OBSERVATIONS)

    # -- checkpoints ----------------------------------------------------------------------------

    def _snapshot(self, folder: Path) -> Job:
        states = [env.get_state() for env in self._made(self._train)]
        self._lost = [
            f"the episodes in flight, as {why}" for s in states if (why := s["not_saved"])
        ]
        state = {
            "layout": self._layout(),
            "fresh": list(self._fresh),
            "train": states,
            "experts": self._experts.state(),
        }
        return lambda: save_tree(folder / "env" / f"rank_{self._rank}", state)

    def _not_saved(self) -> list[str]:
        return self._lost

    def _layout(self) -> list[int]:
        """Return how the envs are spread; states fit only the spread that they were saved with."""
        count = self._train[0].num_envs if self._train else 0
        return [self._world_size, self.stages, count]

    def _restore(self, folder: Path) -> list[str]:
        own = folder / "env" / f"rank_{self._rank}"
        if not own.with_name(own.name + ".json").exists():
            own = own.with_name("rank_0")
        state = load_tree(own)
        notes = []
        if state["layout"] == self._layout():
            for env, saved in zip(self._train, state["train"], strict=True):
                if why := env.set_state(saved):
                    notes.append(f"the episodes in flight, as {why}: new episodes begin")
            self._fresh = state["fresh"]
            self._experts.load_state(state["experts"])
        else:
            workers, stages, count = state["layout"]
            notes.append(
                f"the states of the envs, as there were {workers} workers x {stages} stages x "
                f"{count} envs and now are {' x '.join(map(str, self._layout()))}: new episodes "
                "begin"
            )
        return notes

    def on_shutdown(self) -> None:
        """Close the simulators."""
        self._experts.close()
        for env in [*self._train, *self._eval]:
            env.close()


def _without_video(settings: Any) -> Any:
    """Return the section of an env that is not asked for pictures for people."""
    settings = copy.deepcopy(settings)
    OmegaConf.set_readonly(settings, False)
    settings.video_cfg.save_video = False
    OmegaConf.set_readonly(settings, True)
    return settings


def max_env_restarts(cfg: Any) -> int:
    """Env processes that may be restarted in a run before a crash ends it."""
    envs = cfg.env.eval if cfg.runner.only_eval or cfg.env.train is None else cfg.env.train
    return 0 if envs is None else envs.max_restarts


class _EpisodeMetrics:
    """Adds up the metrics of episodes that ended; lists them, too, if they are of many tasks."""

    def __init__(self, by_task: bool = False) -> None:
        self._by_task = by_task
        self._outcomes: list[EpisodeOutcome] = []
        self._sums: dict[str, float] = {}
        self._count = 0
        self._counters: dict[tuple[str, int], int] = {}

    def add(self, infos: dict[str, Any], stage: int = 0, has_success: bool = True) -> None:
        for key in ("restarts", "nan_skipped"):
            if key in infos:
                self._counters[key, stage] = infos[key]
        if "episode" not in infos:
            return
        mask = infos["_episode"]
        self._count += int(mask.sum())
        for key, values in infos["episode"].items():
            if key.startswith("success") and not has_success:
                continue
            self._sums[key] = self._sums.get(key, 0.0) + float(values[mask].sum())
        if self._by_task:
            self._outcomes += list_outcomes(infos, has_success)

    def result(self) -> dict[str, Any]:
        counters: dict[str, int] = {}
        for (key, _), count in self._counters.items():
            counters[key] = counters.get(key, 0) + count
        return {
            "sums": self._sums,
            "episodes": self._count,
            "counters": counters,
            "outcomes": self._outcomes,
        }
