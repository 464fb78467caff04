"""Groups that a run of a language model may have besides rollout, reward and actor.

Each takes groups of responses on their way from the reward to the actor and adds something that the
actor would otherwise compute itself:

    reward ─ rewarded ─ [inference] ─ [reference] ─ [critic] ─ actor
                                                        ↑ returns ↵
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlinf.config.placed import is_placed
from rlinf.scheduler import Channel, WorkerGroup, wait_beside
from rlinf.workers.critic.critic_worker import ReasoningCriticWorker
from rlinf.workers.inference.reasoning_inference import ReasoningInference

_WORKERS = {
    "inference": (ReasoningInference, ("inference",)),
    "reference": (ReasoningInference, ("reference",)),
    "critic": (ReasoningCriticWorker, ()),
}


def launch_helpers(cfg: Any, cluster: Any, placement: Any) -> dict[str, WorkerGroup]:
    """Launch those of the optional groups that the placement names; return them by role.

    Args:
        cfg: checked configuration.
        cluster: where to.
        placement: has `get_strategy(component)`.
    """
    return {
        role: worker.create_group(cfg, *further).launch(
            cluster, name=cfg[role].group_name, placement_strategy=placement.get_strategy(role)
        )
        for role, (worker, further) in _WORKERS.items()
        if is_placed(cfg, role)
    }


class Helpers:
    """Commands the optional groups through the steps of a run.

    Args:
        cfg: checked configuration.
        actor: group of `ReasoningActor`.
        inference: group of `ReasoningInference`, or None.
        reference: the same as `reference`, or None.
        critic: group of `ReasoningCriticWorker`, or None.

    Raises:
        ValueError: the placement names a group that is not here, or the other way round.
    """

    def __init__(
        self,
        cfg: Any,
        actor: WorkerGroup,
        inference: WorkerGroup | None = None,
        reference: WorkerGroup | None = None,
        critic: WorkerGroup | None = None,
    ) -> None:
        given = {"inference": inference, "reference": reference, "critic": critic}
        for role, group in given.items():
            if (group is not None) != is_placed(cfg, role):
                here = "was given" if group is not None else "was not given"
                raise ValueError(
                    f"a {role} group {here}, but cluster.component_placement "
                    f"{'does not name' if group is not None else 'names'} {role}; the actor goes "
                    "by the placement: use launch_helpers of rlinf.runners.reasoning_helpers"
                )
        self._groups = {role: group for role, group in given.items() if group is not None}
        self._actor = actor
        self._critic_goes_first = critic is not None and cfg.algorithm.critic_warmup_steps > 0
        self._calls: dict[str, Any] = {}

    def __iter__(self) -> Any:
        """Return the groups."""
        return iter(self._groups.values())

    @property
    def saved(self) -> list[WorkerGroup]:
        """Those that have something to save."""
        return [group for role, group in self._groups.items() if role != "inference"]

    def init_workers(self, total_steps: int) -> list[Any]:
        """Let the workers build their models; return the calls."""
        return [
            group.init_worker(total_steps) if role == "critic" else group.init_worker()
            for role, group in self._groups.items()
        ]

    def connect(self, create: Callable[[str], Channel]) -> None:
        """Make the channels that groups come out of.

        Args:
            create: makes a channel of a name.
        """
        self._outputs = {role: create(f"after {role}") for role in self._groups}
        self._returns = create("returns") if "critic" in self._groups else None

    # -- weights --------------------------------------------------------------------------------

    def sync_inference(self, services: Sequence[Any]) -> None:
        """Bring the actor's policy to those who recompute log-probabilities, if there are any."""
        if "inference" in self._groups:
            self._sync("inference", self._actor.sync_model_to_inference, services)

    def sync_reference(self, services: Sequence[Any]) -> None:
        """Make the actor's policy the reference of the run, if workers of their own have it."""
        if "reference" in self._groups:
            self._sync("reference", self._actor.sync_model_to_reference, services)

    def _sync(self, role: str, send: Callable[[], Any], services: Sequence[Any]) -> None:
        received = self._groups[role].sync_model_from_actor()
        wait_beside(send(), [received, *services])
        wait_beside(received, services)

    # -- a step ---------------------------------------------------------------------------------

    def begin(self, source: Channel, groups: int, step: int) -> tuple[Channel, dict[str, Any]]:
        """Let the groups of a step pass through all stages.

        Args:
            source: rewarded groups.
            groups: how many there are.
            step: what they wait under.

        Returns:
            Where the actor gets them, and further arguments of its `run_training`.
        """
        arguments: dict[str, Any] = {}
        if self._critic_goes_first:
            arguments["critic_first"] = self._groups["critic"].warming_up().wait()[0]
        self._calls = {}
        for role, group in self._groups.items():
            self._calls[role] = group.run_inference(source, self._outputs[role], groups, step)
            source = self._outputs[role]
        if self._returns is not None:
            critic = self._groups["critic"]
            self._calls["critic training"] = critic.run_training(
                self._returns, self._actor.world_size, step
            )
            arguments["returns_channel"] = self._returns
        return source, arguments

    @property
    def calls(self) -> list[Any]:
        """Calls of the step that is being made."""
        return list(self._calls.values())

    def finish(self, services: Sequence[Any]) -> tuple[dict[str, float], dict[str, float]]:
        """Wait for all of the step; return metrics of the update and times of the groups."""
        metrics: dict[str, float] = {}
        times: dict[str, float] = {}
        for name, call in self._calls.items():
            answer = wait_beside(call, services)[0]
            if name == "critic training":
                metrics |= answer
            for tag, seconds in call.consume_durations().items():
                times[f"{name.split()[0]}/{tag}"] = seconds
        self._calls = {}
        return metrics, times
