"""A policy while it acts: noise, guard against NaN, values of ends, and the record of a rollout.

Whoever holds it, a rollout worker or an env process that acts on its own, brings observations and
carries actions away; the numbers are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rlinf.config.acting import EVAL_BATCH_ON_CPU
from rlinf.data.embodied import PolicyTrajectory
from rlinf.data.embodied_messages import BEGINS, EARLY, EPISODES, Obs, tensors_of
from rlinf.models.embodiment.base_policy import BasePolicy
from rlinf.models.embodiment.noise import EnvNoise
from rlinf.utils.determinism import named_seed
from rlinf.workers.agreement import SeenInputs, sampled_steps
from rlinf.workers.rollout.episode_plans import EpisodePlans
from rlinf.workers.rollout.episode_server import act_in_blocks
from rlinf.workers.rollout.observation_guard import ObservationGuard
from rlinf.workers.rollout.policy_memory import PolicyMemory
from rlinf.workers.rollout.trajectory_recorder import TrajectoryRecorder

_COMPUTED_LATER = ("compute_logprobs", "compute_values")
"""Arguments by which a policy can be told not to compute what the learner alone needs."""
_PLAN = "plan"
"""Under what name the last plans are among the observations that blocks are cut from."""


class RolloutPolicy:
    """Acts for the envs of one process, stage by stage.

    Args:
        policy: on its device.
        device: that device.
        env_ids: numbers, in the whole run, of the envs of each stage.
        seed: of the noise.
        rank: of the process, for noise that a policy draws itself.
        on_nan: see `ObservationGuard`.
        warn: tells the user something.
        compares: whether a few steps of each rollout are kept for a comparison with the learner.
        keep_final: whether the learner needs the observations in which episodes ended.
        random_chunks: chunk steps that begin the run with actions drawn uniformly.
        samples: whether it draws its actions after that; else it acts as in evaluations.
        newer: takes up weights that have arrived meanwhile and returns their version, or None if
            there are none; see `StagedWeights.take`. None if none arrive while the policy acts.
        eval_batch: observations that the policy sees at a time in evaluations.

    A policy whose `predict_action_batch` takes `compute_logprobs` and `compute_values` is asked for
    neither in a step: they are computed at the end for all steps at once, and values before the
    weights change.

    Attributes:
        policy: the policy.
        version: of its weights; -1 if none have arrived.
        steps: chunk steps of all rollouts so far, which choose the noise.
        seen: checksums of what it acted on in the last rollout.
        generator: of noise that the policy draws itself.
        memory: what the policy remembers of running episodes.
    """

    def __init__(
        self,
        policy: BasePolicy,
        device: torch.device,
        env_ids: Sequence[Sequence[int]],
        *,
        seed: int,
        rank: int = 0,
        on_nan: str = "stop",
        warn: Callable[[str], None] = print,
        compares: bool = False,
        keep_final: bool = False,
        random_chunks: int = 0,
        samples: bool = True,
        newer: Callable[[bool, Callable[[], None]], int | None] | None = None,
        eval_batch: int = EVAL_BATCH_ON_CPU,
    ) -> None:
        self.policy, self._device, self._env_ids = policy, device, env_ids
        self._on_host = device.type == "cpu"
        self.version, self.steps = -1, 0
        self.seen = SeenInputs()
        own = named_seed(seed, "rollout", "policy", rank)
        self.generator = torch.Generator(device).manual_seed(own)
        policy.set_generator(self.generator)
        takes = inspect.signature(policy.predict_action_batch).parameters
        _check_real_time_chunking(policy, takes)
        self._noise: list[EnvNoise] = []
        if "noise" in takes:
            self._noise = [EnvNoise(seed, ids, policy.noise_width) for ids in env_ids]
        self._later = {name: False for name in _COMPUTED_LATER if name in takes}
        self.memory = PolicyMemory(policy, [len(ids) for ids in env_ids], device)
        self._guard = ObservationGuard(on_nan, warn)
        self._compares, self._keep_final = compares, keep_final
        self._random_chunks, self._samples = random_chunks, samples
        self._newer, self._eval_batch = newer, eval_batch
        self._recorders: list[TrajectoryRecorder] = []
        self._compared: Sequence[int] = ()
        self._plans: EpisodePlans | None = None
        if policy.carries_plan:
            self._plans = EpisodePlans(policy.action_horizon, policy.action_dim)

    @property
    def draws_own_noise(self) -> bool:
        """Whether the policy draws its noise itself, so that it depends on who acts for whom."""
        return not self._noise

    @property
    def keeps_observations(self) -> bool:
        """Whether a record may hold observations as they came: the policy is on the host, too."""
        return self._on_host

    # -- rollouts -------------------------------------------------------------------------------

    def begin_rollout(self, chunks: int) -> None:
        """Take up the newest weights, and forget what was seen in the last rollout.

        Args:
            chunks: chunk steps of each epoch.
        """
        self._renew(wait=True)
        self._compared = sampled_steps(chunks) if self._compares else ()
        self.seen.clear()

    def begin_epoch(self) -> None:
        """Begin to record."""
        self._recorders = [TrajectoryRecorder(self._value_steps) for _ in self._env_ids]

    @torch.inference_mode()
    def act(self, stage: int, message: Obs, epoch: int, chunk: int, step: int) -> Tensor:
        """Choose the actions of a chunk and record them.

        Args:
            stage: whose observations these are.
            message: observations, see `rlinf.data.embodied_messages`.
            epoch: of the rollout.
            chunk: chunk step of the epoch.
            step: chunk step of the run, which chooses the noise.

        Returns:
            Actions `[B, C, A]`, on the host.

        Raises:
            FloatingPointError: an observation is not finite, and `on_nan` is `stop`.
        """
        self._renew(wait=False)
        obs, seen = self._observe(stage, message, chunk)
        how = self._later | self.memory.arguments(stage)
        if self._noise:
            noise = self._noise[stage].at(step)
            how["noise"] = noise if self._on_host else noise.to(self._device)
        if self._plans_ahead(message):
            how |= {"decided": self._decided(stage, message), "now": obs}
        if step < self._random_chunks:
            how["mode"] = "random"
        elif not self._samples:
            how["mode"] = "eval"
        actions, result = self.policy.predict_action_batch(seen, **how)
        self.memory.keep(stage, result)
        if chunk in self._compared:
            self.seen.note(epoch, chunk, self._env_ids[stage], result["forward_inputs"])
        self._recorders[stage].add_step(result, self.version)
        return actions if self._on_host else actions.cpu()

    def _plans_ahead(self, message: Obs) -> bool:
        """Return whether plans are made ahead of time, on which envs and policy must agree."""
        delay, early = self.policy.decided_in_rollouts, EARLY in message
        if early != (delay > 0) and BEGINS not in message:
            given = "earlier observations" if early else "the newest observations alone"
            raise ValueError(
                f"{type(self.policy).__name__} has decided_in_rollouts = {delay}, and is shown "
                f"{given}: it must be actor.model.rtc.delay where actor.model.rtc.rollouts is "
                "delayed, and else 0"
            )
        return delay > 0

    def _decided(self, stage: int, message: Obs) -> Tensor:
        """Return how many actions of the next plans are not their own, int64 `[B]`.

        The first plan of an episode, and of an epoch, is made while nothing is carried out.
        """
        first = message.get(BEGINS) is not None
        decided = 0 if first else self.policy.decided_in_rollouts
        counts = torch.full((len(self._env_ids[stage]),), decided)
        if "done" in message:
            counts[message["done"]] = 0
        return counts.to(self._device)

    def _renew(self, wait: bool) -> None:
        """Go on with the newest weights that have arrived."""
        version = None if self._newer is None else self._newer(wait, self._value_records)
        if version is not None:
            self.version = version

    def _value_records(self) -> None:
        """Compute the values of all steps so far: the weights that made them are replaced."""
        for recorder in self._recorders:
            recorder.value_steps()

    @torch.inference_mode()
    def _value_steps(self, forward_inputs: dict[str, Tensor]) -> Tensor:
        """Return values `[n, U]` of n steps of single envs."""
        out = self.policy.default_forward(
            forward_inputs, compute_logprobs=False, compute_values=True
        )
        return out["values"]

    def finish(self, stage: int, message: Obs, chunk: int) -> PolicyTrajectory:
        """Return the record of an epoch, which ends with these observations.

        Args:
            stage: whose observations these are.
            message: as for `act`.
            chunk: chunk steps of the epoch.
        """
        with torch.inference_mode():
            obs, _ = self._observe(stage, message, chunk, last=True)
            values = self.policy.predict_values(obs, **self.memory.arguments(stage))
        # Outside: what it returns is ordinary tensors, of which a learner may ask gradients.
        return self._recorders[stage].finish(values)

    def _observe(self, stage: int, message: Obs, chunk: int, last: bool = False) -> tuple[Obs, Obs]:
        """Check observations and record which episodes ended in them.

        Returns:
            What is observed now, and what the next plan is made from.
        """
        ids = self._env_ids[stage]
        obs, bad = self._guard.check(message["obs"], chunk, ids)
        seen = obs
        if EARLY in message:
            seen, bad_early = self._guard.check(message[EARLY], chunk, ids)
            bad = _either(bad, bad_early)
        values = ended = None
        if BEGINS in message:
            self.memory.begin(stage, message[BEGINS])
        if "done" in message:
            rows = message["done"].nonzero().squeeze(1)
            ended_ids = [ids[row] for row in rows.tolist()]
            final, bad_ends = self._guard.check(message["final"], chunk, ended_ids)
            if bad_ends is not None:
                bad = torch.zeros_like(message["done"]) if bad is None else bad.clone()
                bad[rows[bad_ends]] = True
            of_rows = self.policy.predict_values(
                self._on_device(final), **self.memory.at_ends(stage, rows)
            ).cpu()
            self.memory.begin(stage, message["done"])
            values = torch.zeros(len(message["done"]), of_rows.shape[1])
            values[rows] = of_rows
            if self._keep_final:
                ended = rows, self._kept(final)
        elif self._keep_final and last:
            # Also where no episode ended in a rollout, the learner is told what it would have got.
            none = torch.zeros(0, dtype=torch.long)
            ended = none, {key: value[:0] for key, value in self._kept(obs).items()}
        self._recorders[stage].add_end(values, bad, ended)
        now = self._on_device(obs)
        return now, now if seen is obs else self._on_device(seen)

    def _kept(self, obs: Obs) -> dict[str, Tensor]:
        """Return what a replay buffer keeps of observations, on the host."""
        kept = self.policy.replay_inputs(self._on_device(obs))
        return {name: value.cpu() for name, value in kept.items()}

    def _on_device(self, obs: Obs) -> Obs:
        if self._on_host:
            return obs
        moved = {k: v.to(self._device, non_blocking=True) for k, v in tensors_of(obs).items()}
        return obs | moved

    # -- evaluation -----------------------------------------------------------------------------

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluate the newest weights; noise drawn meanwhile changes nothing in training."""
        self._renew(wait=True)
        if self._plans is not None:
            self._plans.clear()
        self.memory.forget_episodes()
        noise = self.generator.get_state()
        try:
            yield
        finally:
            self.generator.set_state(noise)

    def evaluate(self, message: Obs, env_ids: Sequence[int], step: int) -> Tensor:
        """Choose actions without noise; the same for an episode whoever plays it.

        Args:
            message: observations, under `EPISODES` whose they are, and under `BEGINS` which of them
                are the first of an episode.
            env_ids: numbers, in the whole run, of the envs.
            step: of the evaluation, for messages.

        Returns:
            Actions `[B, C, A]`, on the host; zeros where no episode runs.
        """
        episodes = message[EPISODES].tolist()
        obs, _ = self._guard.check(message["obs"], step, env_ids)
        policy, plans = self.policy, self._plans
        length = policy.num_action_chunks if plans is None else policy.action_horizon
        actions = torch.zeros(len(episodes), length, policy.action_dim, dtype=policy.action_dtype)
        if plans is not None:
            planned = {**obs, _PLAN: plans.of(episodes)}
            act_in_blocks(self._go_on, self._eval_batch, planned, episodes, actions)
            plans.keep(episodes, actions)
            return actions[:, : policy.num_action_chunks].contiguous()
        memory = self.memory.recall(episodes, message.get(BEGINS))
        after = [torch.zeros_like(memory["memory"])] if memory else []
        seen = {**obs, **memory}
        act_in_blocks(self._act, self._eval_batch, seen, episodes, actions, *after)
        self.memory.note(episodes, *after)
        return actions

    def _act(self, obs: Obs) -> tuple[Tensor, ...]:
        obs = self._on_device(obs)
        memory = {key: obs.pop(key) for key in ("memory", "begins") if key in obs}
        actions, result = self.policy.predict_action_batch(obs, mode="eval", **memory)
        return (actions.cpu(), result["memory"].cpu()) if memory else (actions.cpu(),)

    def _go_on(self, obs: Obs) -> tuple[Tensor]:
        """Return whole plans, made with the last ones at hand."""
        obs = self._on_device(obs)
        plan = obs.pop(_PLAN)
        return (self.policy.predict_action_batch(obs, mode="eval", plan=plan)[1]["plan"].cpu(),)


def _either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return which rows are in one of two masks; None has no row."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def _check_real_time_chunking(policy: BasePolicy, takes: Collection[str]) -> None:
    """See to it that what a policy is told of its plans does not get lost among other arguments.

    Args:
        policy: the policy.
        takes: arguments of its `predict_action_batch`.

    Raises:
        ValueError: One is missing.
    """
    needed = {
        "carries_plan": ("plan",) if policy.carries_plan else (),
        "decided_in_rollouts": ("decided", "now") if policy.decided_in_rollouts else (),
    }
    for why, names in needed.items():
        missing = [name for name in names if name not in takes]
        if missing:
            raise ValueError(
                f"{type(policy).__name__} has {why} = {getattr(policy, why)}, but its "
                f"predict_action_batch takes no {', '.join(missing)}: add the parameter, or leave "
                f"{why} as it is in BasePolicy"
            )
