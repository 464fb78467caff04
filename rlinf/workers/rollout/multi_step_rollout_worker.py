"""The rollout worker: acts with the policy for many steps and keeps what the learner needs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlinf.data.embodied import RolloutHalf, split_halves
from rlinf.data.env_share import env_ids
from rlinf.hybrid_engines.fsdp.precision import usable_format
from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.models import get_model
from rlinf.models.embodiment.noise import EnvNoise
from rlinf.scheduler import Worker
from rlinf.scheduler.worker.routing import CommMapper, merge_batches
from rlinf.utils.checkpoint import load_tree, save_tree
from rlinf.utils.determinism import be_deterministic, named_seed
from rlinf.utils.env_spec import EnvSpec, rollout_steps
from rlinf.workers.agreement import Evidence, SeenInputs, sampled_steps
from rlinf.workers.checkpointed import Checkpointed, Job
from rlinf.workers.env.env_worker import ACTIONS, EPISODES, EVAL, OBS, OVER
from rlinf.workers.rollout.episode_server import Clients, act_in_blocks
from rlinf.workers.rollout.observation_guard import ObservationGuard

HALF = "rollout half"


class MultiStepRolloutWorker(Checkpointed, Worker):
    """Serves the env workers' requests for actions, stage by stage.

    What the learner needs to recompute a step stays here until the rollout ends and then goes
    straight to the actor; the env carries only actions.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        torch.set_num_threads(1)
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, "rollout", self._rank)
        self.cfg = cfg
        self.stages = cfg.rollout.pipeline_stage_num
        self.version = -1
        self._device = torch.device(self.torch_device_type)

    def init_worker(self, env_spec: EnvSpec) -> None:
        """Builds the policy."""
        self._format = self._number_format()
        policy = get_model(self.cfg.actor.model, env_spec, self._format)
        self.policy = policy.to(self._device).eval()
        seed = self.cfg.rollout.seed
        seed = self.cfg.runner.seed if seed is None else seed
        own = named_seed(seed, "rollout", "policy", self._rank)
        generator = torch.Generator(self._device).manual_seed(own)
        self.policy.set_generator(generator)
        self._generator = generator
        self._noise = self._noise_of_envs(seed)
        self._steps = 0
        self._env_spec = env_spec
        self._receiver = WeightReceiver(self, self.cfg)
        self._guard = ObservationGuard(self.cfg.runner.on_nan, self.log_warning)
        self._seen = SeenInputs()
        self._offload()

    def _number_format(self) -> torch.dtype:
        """That of the policy's weights."""
        own = self.cfg.rollout.model.precision
        key = "actor.model.precision" if own is None else "rollout.model.precision"
        name = self.cfg.actor.model.precision if own is None else own
        dtype, note = usable_format(name, self._device, key)
        if note and self._rank == 0:
            self.log_warning(note)
        return dtype

    def _noise_of_envs(self, seed: int) -> list[EnvNoise]:
        """One source of noise per stage, which gives an env the same noise however envs are spread.

        Empty if the policy draws its noise itself.
        """
        train = self.cfg.env.train
        takes_noise = "noise" in inspect.signature(self.policy.predict_action_batch).parameters
        if train is None or not takes_noise:
            return []
        width = self.policy.num_action_chunks * self.policy.action_dim
        return [EnvNoise(seed, ids, width) for ids in self._env_ids(train, self.stages)]

    def _env_ids(self, cfg: Any, stages: int) -> list[list[int]]:
        """Numbers, in the whole run, of the envs that this rank serves, by stage."""
        return [
            env_ids(
                cfg.total_num_envs,
                env_workers=self._world_size_of(self.cfg.env.group_name),
                stages=stages,
                stage=stage,
                ranks=self._world_size,
                rank=self._rank,
            )
            for stage in range(stages)
        ]

    def sync_model_from_actor(self) -> int:
        """Receives the actor's weights; returns their version."""
        self._onload()
        self.version = self._receiver.receive(self.policy)
        return self.version

    def _onload(self) -> None:
        """Brings the policy back to the device, if it was put away."""
        if self.cfg.rollout.enable_offload:
            with self.worker_timer("onload"):
                self.policy.to(self._device)

    def _offload(self) -> None:
        """Leaves the device to others, if the config says so."""
        if self.cfg.rollout.enable_offload:
            with self.worker_timer("offload"):
                self.policy.to("cpu")
                if self._device.type != "cpu":
                    self.torch_platform.empty_cache()

    @Worker.timer("generate")
    def generate(self) -> None:
        """Acts through one rollout and sends its half of it to the actor group."""
        self._onload()
        cfg = self.cfg.env.train
        chunks = self._chunks(cfg, self._env_spec.train_steps)
        env, actor = self.cfg.env.group_name, self.cfg.actor.group_name
        ids = self._env_ids(cfg, self.stages)
        step = self._steps
        compared = sampled_steps(chunks) if self.cfg.runner.agreement.interval >= 0 else ()
        self._seen.clear()
        for epoch in range(cfg.rollout_epoch):
            records = [_Record(self.version) for _ in range(self.stages)]
            for chunk in range(chunks):
                for stage, record in enumerate(records):
                    obs, bad = self._guard.check(self._recv_obs(env, stage), chunk, ids[stage])
                    with self.worker_timer("predict"):
                        final = self._final_values(obs)
                        actions, result = self.policy.predict_action_batch(
                            self._inputs(obs), **self._sampling(stage, step)
                        )
                    if chunk in compared:
                        self._seen.note(epoch, chunk, ids[stage], result["forward_inputs"])
                    self.send_to(env, None, actions.cpu(), route_key=stage, tag=ACTIONS)
                    record.add(final, result, bad)
                step += 1
            for stage, record in enumerate(records):
                obs, bad = self._guard.check(self._recv_obs(env, stage), chunks, ids[stage])
                with self.worker_timer("predict"):
                    half = record.finish(
                        self._final_values(obs), self.policy.predict_values(self._inputs(obs)), bad
                    )
                self.send_to(
                    actor,
                    None,
                    half,
                    route_key=(epoch, stage),
                    tag=HALF,
                    batch_size=cfg.total_num_envs // self.stages,
                    split_fn=split_halves,
                )
        # Not before: a rollout that is played again has the noise of its first attempt.
        self._steps = step
        self._offload()

    def _sampling(self, stage: int, step: int) -> dict[str, Any]:
        if not self._noise:
            return {}
        return {"noise": self._noise[stage].at(step).to(self._device)}

    def _recv_obs(self, env: str, stage: Any, ranks: list[int] | None = None) -> dict[str, Any]:
        return self.recv_from(env, None, route_key=stage, tag=OBS, merge_fn=merge_obs, ranks=ranks)

    def _inputs(self, obs: dict[str, Any]) -> dict[str, Any]:
        own = {k: v for k, v in obs.items() if not k.startswith("final_") and k != "done"}
        if self._device.type == "cpu":
            return own
        return {key: value.to(self._device, non_blocking=True) for key, value in own.items()}

    def _final_values(self, obs: dict[str, Any]) -> torch.Tensor | None:
        """V of the observations in which episodes ended; None if none did."""
        if "done" not in obs:
            return None
        rows = obs["done"].nonzero().squeeze(1)
        final = {
            key.removeprefix("final_"): value[rows].to(self._device)
            for key, value in obs.items()
            if key.startswith("final_")
        }
        values = self.policy.predict_values(final).cpu()
        out = torch.zeros(len(obs["done"]), values.shape[1])
        out[rows] = values
        return out

    def _chunks(self, cfg: Any, own_limit: int | None) -> int:
        return rollout_steps(cfg, own_limit) // self.cfg.actor.model.num_action_chunks

    # -- evaluation -------------------------------------------------------------------------------

    @Worker.timer("evaluate")
    def evaluate(self) -> None:
        """Acts without noise, until the env workers have no episode left."""
        self._onload()
        env, total = self.cfg.env.group_name, self.cfg.env.eval.total_num_envs
        workers = self._world_size_of(env)
        shares = CommMapper.get_src_ranks(total, workers, self._world_size, self._rank)
        clients = Clients(shares, *self._env_ids(self.cfg.env.eval, 1))
        noise, step = self._generator.get_state(), 0
        while clients.ranks:
            obs = self._recv_obs(env, EVAL, clients.ranks)
            obs = clients.drop(obs, obs.pop(OVER))
            if clients.ranks:
                episodes = obs.pop(EPISODES).tolist()
                obs, _ = self._guard.check(obs, step, clients.env_ids)
                shape = len(episodes), self.policy.num_action_chunks, self.policy.action_dim
                act_in_blocks(self._act, obs, episodes, actions := torch.zeros(shape))
                self.send_to(
                    env,
                    None,
                    actions,
                    route_key=EVAL,
                    tag=ACTIONS,
                    batch_size=total,
                    ranks=clients.ranks,
                )
            step += 1
        # A policy that draws noise although it is evaluated must not change what is trained.
        self._generator.set_state(noise)
        self._offload()

    def _act(self, obs: dict[str, Any]) -> torch.Tensor:
        return self.policy.predict_action_batch(self._inputs(obs), mode="eval")[0].cpu()

    def keep_weights(self) -> None:
        """Remembers the weights, until `restore_weights`."""
        tensors = self.policy.state_dict()
        kept = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self._kept = self.version, kept

    def restore_weights(self) -> None:
        """Goes on with the weights of `keep_weights`."""
        self.version, kept = self._kept
        self.policy.load_state_dict(kept)
        del self._kept

    # -- agreement with the actor ---------------------------------------------------------------

    def number_format(self) -> torch.dtype:
        """The format that the policy is meant to compute in."""
        return self._format

    def evidence(self) -> Evidence:
        """What the policy acted with in the last rollout, as checksums."""
        name = f"{self.group_name}:{self._rank}"
        return Evidence.of(name, self.version, self.policy, self._seen.table())

    # -- checkpoints ----------------------------------------------------------------------------

    def _snapshot(self, folder: Path) -> Job:
        state = {
            "world_size": self._world_size,
            "steps": self._steps,
            "generator": self._generator.get_state(),
        }
        return lambda: save_tree(folder / "rollout" / f"rank_{self._rank}", state)

    def _restore(self, folder: Path) -> list[str]:
        """The weights are not among it: they come with the next sync."""
        own = folder / "rollout" / f"rank_{self._rank}"
        same = own.with_name(own.name + ".json").exists()
        state = load_tree(own if same else own.with_name("rank_0"))
        self._steps = state["steps"]
        if state["world_size"] == self._world_size:
            self._generator.set_state(state["generator"])
        elif not self._noise:
            return [
                f"the noise of the policy, as there were {state['world_size']} rollout ranks and "
                f"now are {self._world_size}"
            ]
        return []


def merge_obs(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Joins observations of several env workers, of which only some may have ended episodes."""
    if any("done" in part for part in parts):
        parts = [part if "done" in part else _without_ends(part) for part in parts]
    return merge_batches(parts)


def _without_ends(part: dict[str, Any]) -> dict[str, Any]:
    count = len(next(iter(part.values())))
    finals = {f"final_{key}": value for key, value in part.items()}
    return {**part, **finals, "done": torch.zeros(count, dtype=torch.bool)}


class _Record:
    """One stage of a rollout while it grows."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._results: list[dict[str, Any]] = []
        self._final: list[torch.Tensor | None] = []
        self._bad: list[torch.Tensor | None] = []

    def add(
        self, final: torch.Tensor | None, result: dict[str, Any], bad: torch.Tensor | None
    ) -> None:
        """Adds a step; `final` belongs to the step before it, `bad` rows are not finite."""
        if self._results:
            self._final.append(final)
        self._results.append(result)
        self._bad.append(bad)

    def _finite(self, envs: int, steps: int) -> torch.Tensor:
        """`[B, T]`: steps whose observations, before and after, are finite."""
        finite = torch.ones(envs, steps, dtype=torch.bool)
        for step, bad in enumerate(self._bad):
            if bad is not None:
                finite[bad, max(0, step - 1) : step + 1] = False
        return finite

    def finish(
        self, final: torch.Tensor | None, last_values: torch.Tensor, bad: torch.Tensor | None
    ) -> RolloutHalf:
        """The whole stage, batch first, on the host."""
        self._final.append(final)
        self._bad.append(bad)
        values = [r["prev_values"] for r in self._results] + [last_values]
        prev_values = torch.stack(values, 1).cpu()
        empty = torch.zeros_like(prev_values[:, 0])
        bootstrap = torch.stack([empty if f is None else f for f in self._final], 1)
        keys = self._results[0]["forward_inputs"]
        logprobs = torch.stack([r["prev_logprobs"] for r in self._results], 1).cpu()
        return RolloutHalf(
            forward_inputs={
                key: torch.stack([r["forward_inputs"][key] for r in self._results], 1).cpu()
                for key in keys
            },
            prev_logprobs=logprobs,
            prev_values=prev_values,
            bootstrap_values=bootstrap,
            versions=torch.full(logprobs.shape[:2], self._version),
            finite=self._finite(*logprobs.shape[:2]),
        )
