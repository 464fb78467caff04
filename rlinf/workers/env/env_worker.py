"""The env worker: simulates, asks for actions, and tells the actor what came of them."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from rlinf.data.embodied import EnvHalf, split_halves
from rlinf.envs import can_render, get_env_cls
from rlinf.scheduler import Worker
from rlinf.utils.env_spec import EnvSpec

OBS, ACTIONS, TRAJECTORY = "obs", "actions", "env half"


class EnvWorker(Worker):
    """Holds one vector env per pipeline stage.

    While the policy looks at the observations of one stage, the worker steps another. Messages go
    point to point to the rollout workers that serve these envs.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.cfg = cfg
        self.stages = cfg.rollout.pipeline_stage_num
        self._train: list[Any] = []
        self._eval: list[Any] = []
        self._fresh = [True] * self.stages

    # -- setting up -----------------------------------------------------------------------------

    def init_worker(self) -> EnvSpec:
        """Makes the simulators and describes them."""
        self._video = self._prepare_video()
        if self.cfg.env.train is not None and not self.cfg.runner.only_eval:
            self._train = self._make(self.cfg.env.train, self.stages)
        if self.cfg.env.eval is not None:
            self._eval = self._make(self.cfg.env.eval, 1)
        env = (self._train or self._eval)[0]
        image = env.obs_spec.get("main_images")
        states = env.obs_spec.get("states")
        low, high = env.action_spec.low, env.action_spec.high
        return EnvSpec(
            obs_dim=states.shape[-1] if states is not None else None,
            action_dim=env.action_spec.dim,
            action_low=low,
            action_high=high,
            image_shape=image.shape if image is not None else None,
        )

    def _prepare_video(self) -> tuple[bool, str]:
        """Chooses how to draw, before a simulator is loaded; a run goes on without pictures."""
        cfg = self.cfg.env.eval
        if cfg is None or not cfg.video_cfg.save_video:
            return False, "env.eval.video_cfg.save_video is off"
        able, reason = can_render() if self._rank == 0 else (False, "rank 0 draws")
        if not os.environ.get("MUJOCO_GL"):
            os.environ["MUJOCO_GL"] = reason.rpartition("=")[2] if able else "disable"
        return able, reason

    def _make(self, cfg: Any, stages: int) -> list[Any]:
        env_cls = get_env_cls(cfg.env_type, cfg)
        parts = self._world_size * stages
        count = cfg.total_num_envs // parts
        return [
            env_cls(
                cfg,
                num_envs=count,
                seed_offset=self._rank * stages + stage,
                total_num_processes=parts,
                worker_info=self.worker_info,
            )
            for stage in range(stages)
        ]

    # -- training rollouts ------------------------------------------------------------------------

    @Worker.timer("interact")
    def interact(self) -> dict[str, Any]:
        """Plays one rollout with the rollout group and sends its half of it to the actor group.

        Returns:
            Metrics of the episodes that ended: sums and counts.
        """
        cfg = self.cfg.env.train
        chunks = self._chunks(cfg)
        metrics = _EpisodeMetrics()
        rollout, actor = self.cfg.rollout.group_name, self.cfg.actor.group_name
        for epoch in range(cfg.rollout_epoch):
            records: list[list[tuple]] = [[] for _ in range(self.stages)]
            for stage, env in enumerate(self._train):
                self._send_obs(rollout, stage, self._first_obs(stage, env), None)
            for _ in range(chunks):
                for stage, env in enumerate(self._train):
                    actions = self._recv_actions(rollout, stage)
                    with self.worker_timer("env_step"):
                        obs, rewards, terms, truncs, infos = env.chunk_step(actions)
                    records[stage].append((rewards, terms, truncs, infos[-1]["_valid"]))
                    self._send_obs(rollout, stage, obs[-1], infos[-1])
                    metrics.add(infos[-1])
            for stage in range(self.stages):
                half = EnvHalf(
                    *(torch.stack(column, 1) for column in zip(*records[stage], strict=True))
                )
                self.send_to(
                    actor,
                    None,
                    half,
                    route_key=(epoch, stage),
                    tag=TRAJECTORY,
                    batch_size=cfg.total_num_envs // self.stages,
                    split_fn=split_halves,
                )
            if not cfg.auto_reset:
                self._fresh = [True] * self.stages
        steps = cfg.total_num_envs // self._world_size * chunks * self._chunk_len
        return metrics.result() | {"env_steps": steps * cfg.rollout_epoch}

    @property
    def _chunk_len(self) -> int:
        return self.cfg.actor.model.num_action_chunks

    def _chunks(self, cfg: Any) -> int:
        steps = cfg.max_steps_per_rollout_epoch or cfg.max_episode_steps
        return steps // self._chunk_len

    def _first_obs(self, stage: int, env: Any) -> dict[str, Any]:
        if self._fresh[stage] or env.is_start:
            self._fresh[stage] = False
            env.update_reset_state_ids()
            return env.reset()[0]
        return env.last_obs

    def _send_obs(self, rollout: str, stage: Any, obs: dict[str, Any], infos: Any) -> None:
        """Sends observations and, where episodes ended, those in which they ended."""
        message = {key: value for key, value in obs.items() if isinstance(value, torch.Tensor)}
        if infos is not None and "final_observation" in infos:
            final = infos["final_observation"]
            for key, value in final.items():
                if isinstance(value, torch.Tensor):
                    message[f"final_{key}"] = value
            message["done"] = infos["_final_observation"]
        self.send_to(rollout, None, message, route_key=stage, tag=OBS)

    def _recv_actions(self, rollout: str, stage: Any) -> torch.Tensor:
        begin = time.perf_counter()
        actions = self.recv_from(rollout, None, route_key=stage, tag=ACTIONS)
        self._add_time("wait_actions", begin)
        return actions

    def _add_time(self, tag: str, begin: float) -> None:
        from rlinf.scheduler.worker import timers

        store = timers.of_call()
        if store is not None:
            store[tag] = store.get(tag, 0.0) + time.perf_counter() - begin

    # -- evaluation -------------------------------------------------------------------------------

    @Worker.timer("evaluate")
    def evaluate(self, rounds: int) -> dict[str, Any]:
        """Plays whole episodes without learning.

        Args:
            rounds: episodes per env.

        Returns:
            Metrics of the episodes: sums and counts.
        """
        cfg = self.cfg.env.eval
        env = self._eval[0]
        rollout = self.cfg.rollout.group_name
        metrics = _EpisodeMetrics()
        for _ in range(rounds):
            env.update_reset_state_ids()
            obs, infos = env.reset()
            self._send_obs(rollout, "eval", obs, None)
            for _ in range(self._chunks(cfg)):
                actions = self._recv_actions(rollout, "eval")
                obs_list, _, _, _, infos = env.chunk_step(actions)
                metrics.add(infos[-1])
                self._send_obs(rollout, "eval", obs_list[-1], None)
        return metrics.result()

    def record(self, path: str, fps: int) -> str:
        """Plays one evaluation round and writes a video of env 0; returns its path or why not."""
        able, reason = self._video
        env, rollout = self._eval[0], self.cfg.rollout.group_name
        env.update_reset_state_ids()
        obs, _ = env.reset()
        self._send_obs(rollout, "eval", obs, None)
        frames = []
        for step in range(self._chunks(self.cfg.env.eval)):
            actions = self._recv_actions(rollout, "eval")
            obs_list, _, _, _, _ = env.chunk_step(actions)
            self._send_obs(rollout, "eval", obs_list[-1], None)
            if able and self._rank == 0 and step % 2 == 0:
                try:
                    frames.append(env.capture_image([0])[0])
                except Exception as error:
                    able, reason = False, f"{type(error).__name__}: {error}"
        if self._rank != 0:
            return ""
        if not able:
            return f"no video: {reason}"
        import imageio.v2 as imageio

        imageio.mimsave(path, frames, fps=fps // 2)
        return path

    def on_shutdown(self) -> None:
        """Closes the simulators."""
        for env in [*self._train, *self._eval]:
            env.close()


class _EpisodeMetrics:
    """Adds up the metrics of episodes that ended."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0
        self._counters: dict[str, int] = {}

    def add(self, infos: dict[str, Any]) -> None:
        for key in ("restarts", "nan_skipped"):
            if key in infos:
                self._counters[key] = infos[key]
        if "episode" not in infos:
            return
        mask = infos["_episode"]
        self._count += int(mask.sum())
        for key, values in infos["episode"].items():
            self._sums[key] = self._sums.get(key, 0.0) + float(values[mask].sum())

    def result(self) -> dict[str, Any]:
        return {"sums": self._sums, "episodes": self._count, "counters": self._counters}
