"""An optimiser of some of a model's parameters, with the schedule of its learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.fsdp.optimizer_memory import OptimizerMemory
from rlinf.hybrid_engines.fsdp.schedule import learning_rate_factor
from rlinf.hybrid_engines.fsdp.sharding import whole

ACTOR = "actor"
"""Name of the optimiser of a model that has only one."""

Named = Iterable[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class OptimizerSpec:
    """Which parameters an optimiser trains, and how.

    Attributes:
        optim: the `optim` section.
        trains: whether it trains the parameter of this name; None is all.
        value_steps: steps, at first, in which the value function learns alone.
    """

    optim: Any
    trains: Callable[[str], bool] | None = None
    value_steps: int = 0


class ScheduledOptimizer:
    """AdamW with clipping of gradients and a schedule of the learning rate.

    Args:
        name: what messages call it.
        parameters: what it trains.
        of_value: whether the parameter of this name belongs to a value function, which may learn
            at a rate of its own, and alone at first.
        fused: let one kernel update all parameters.

    Attributes:
        optimizer: torch's.
        steps: optimiser steps made.
        progress: optimiser steps planned so far, made or not; the schedule follows it.
    """

    def __init__(
        self, name: str, parameters: Named, of_value: Callable[[str], bool], fused: bool
    ) -> None:
        self.name = name
        self.named = list(parameters)
        groups: list[dict[str, Any]] = [{"params": []}, {"params": []}]
        for parameter_name, parameter in self.named:
            groups[int(of_value(parameter_name))]["params"].append(parameter)
        self._of_policy, self._of_value = (group["params"] for group in groups)
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], fused=fused)
        self._kinds = [
            kind for kind, g in zip(("policy", "value"), groups, strict=True) if g["params"]
        ]
        self._memory = OptimizerMemory(self.optimizer)
        self.steps = self.progress = 0

    def follow(self, optim: Any, total_steps: int, value_steps: int = 0) -> None:
        """Take learning rates and the like from an `optim` section, and begin its schedule.

        Args:
            optim: the section.
            total_steps: optimiser steps of the schedule.
            value_steps: steps, at first, in which the value function learns alone.

        Raises:
            ValueError: a learning rate, or steps alone, for a value function that is not trained
                here.
        """
        if optim.value_lr is not None and self._kinds == ["policy"]:
            raise ValueError(
                f"optim.value_lr is {optim.value_lr}, but the model has no value function of its "
                f"own that the optimiser {self.name} trains: leave value_lr out, set "
                "model.add_value_head to true, or let the model name the parameters "
                "(is_value_parameter)"
            )
        if value_steps and not any(p.requires_grad for p in self._of_value):
            raise ValueError(
                f"algorithm.critic_warmup_steps is {value_steps}, but the model names no "
                "parameters of a value function that could learn alone: leave it out, set "
                "model.add_value_head to true, or let the model name the parameters "
                "(is_value_parameter)"
            )
        self._value_steps = value_steps
        for group in self.optimizer.param_groups:
            group |= {
                "betas": (optim.adam_beta1, optim.adam_beta2),
                "eps": optim.adam_eps,
                "weight_decay": optim.weight_decay,
            }
        rates = {"policy": optim.lr, "value": optim.value_lr or optim.lr}
        self._rates = [rates[kind] for kind in self._kinds]
        self._clip_grad: float | None = optim.clip_grad
        self._rate_factor = learning_rate_factor(optim, total_steps)
        self.set_progress(0)

    def forget(self) -> None:
        """Begin anew."""
        self.optimizer.state.clear()
        self.steps = 0

    def set_progress(self, steps: int) -> None:
        """Put the schedule where it is after a number of planned optimiser steps."""
        self.progress = steps
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self._rate_factor(steps)

    @property
    def values_learn_alone(self) -> bool:
        """Whether the next step is one of the value function alone."""
        return self.steps < self._value_steps

    @property
    def only_values_learned(self) -> bool:
        """Whether all steps so far were for the value function alone, as the first are."""
        return 0 < self._value_steps >= self.steps

    def leave_policy(self) -> None:
        """Forget the gradients of all but the value function.

        AdamW neither moves nor decays what has no gradient, and does not count a step for it.
        """
        for parameter in self._of_policy:
            parameter.grad = None

    def gradient_norm(self) -> Tensor:
        """Return the norm of the gradient of what it trains, over all ranks."""
        return torch.nn.utils.get_total_norm([p.grad for p in self._with_gradient()])

    def step(self, norm: Tensor) -> float:
        """Clip the gradient and make a step; return the learning rate that was used.

        Args:
            norm: of the gradient, as `gradient_norm` gives it.
        """
        if self._clip_grad is not None:
            torch.nn.utils.clip_grads_with_norm_(self._with_gradient(), self._clip_grad, norm)
        self.optimizer.step()
        self.steps += 1
        return self.optimizer.param_groups[0]["lr"]

    def step_if_finite(self, norm: Tensor) -> float:
        """Like `step`, but the kernel leaves the step out if the norm is not finite.

        Nobody waits for the device to know. It counts as a step until `uncount` is called.

        Args:
            norm: of the gradient; the optimiser is fused.
        """
        self.optimizer.found_inf = (~torch.isfinite(norm)).to(torch.float32)
        try:
            return self.step(norm)
        finally:
            del self.optimizer.found_inf

    def drop_gradients(self) -> None:
        """Forget the gradients of what it trains."""
        for _, parameter in self.named:
            parameter.grad = None

    def uncount(self, steps: int) -> None:
        """Count fewer steps: those that `step_if_finite` has left out."""
        self.steps -= steps

    def not_finite(self) -> list[str]:
        """Return the names of parameters whose gradient is not finite."""
        return [
            name
            for name, p in self.named
            if p.grad is not None and not torch.isfinite(whole(p.grad)).all()
        ]

    def state_tensors(self) -> dict[str, Tensor]:
        """Return what it remembers, as `<parameter>.<what>`, as it is or as it begins."""
        out = {}
        for name, parameter in self.named:
            if not parameter.requires_grad:
                continue
            state = self.optimizer.state[parameter]
            if not state:
                # Before the first step there is none; this is how AdamW begins.
                state |= self._fresh_state(parameter)
            out |= {f"{name}.{key}": value for key, value in state.items()}
        return out

    def offload(self) -> None:
        """Move what it remembers to the host."""
        self._memory.offload()

    def onload(self, device: torch.device) -> None:
        """Move what it remembers to the device of the weights."""
        self._memory.onload(device)

    def counters(self) -> dict[str, int]:
        """Return where it is, for a checkpoint."""
        return {"steps": self.steps, "progress": self.progress}

    def set_counters(self, state: Mapping[str, int]) -> None:
        """Go on from counters that `counters` returned."""
        self.steps = state["steps"]
        self.set_progress(state["progress"])

    def _with_gradient(self) -> list[nn.Parameter]:
        return [parameter for _, parameter in self.named if parameter.grad is not None]

    def _fresh_state(self, parameter: Tensor) -> dict[str, Tensor]:
        device = parameter.device if self.optimizer.defaults["fused"] else "cpu"
        return {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


def make_optimizers(
    model: nn.Module, specs: Mapping[str, OptimizerSpec], total_steps: int, fused: bool
) -> dict[str, ScheduledOptimizer]:
    """Make the optimisers of a model.

    A model may say by a method `is_value_parameter(name)` what belongs to a value function.

    Args:
        model: what is trained.
        specs: by name.
        total_steps: optimiser steps of the whole run, for schedules.
        fused: let one kernel update all parameters.

    Raises:
        ValueError: a parameter that learns has no optimiser, or two.
    """
    of_value = getattr(model, "is_value_parameter", lambda name: False)
    named = list(model.named_parameters())
    owners = {
        name: [key for key, spec in specs.items() if spec.trains is None or spec.trains(name)]
        for name, _ in named
    }
    for name, parameter in named:
        if len(owners[name]) > 1 or (parameter.requires_grad and not owners[name]):
            found = " and ".join(owners[name]) or "none"
            raise ValueError(
                f"the parameter {name} must have one optimiser, and has {found}; there are: "
                f"{', '.join(specs)}"
            )
    optimizers = {}
    for key, spec in specs.items():
        own = [(name, parameter) for name, parameter in named if key in owners[name]]
        optimizers[key] = ScheduledOptimizer(key, own, of_value, fused)
        optimizers[key].follow(spec.optim, total_steps, spec.value_steps)
    return optimizers
