"""The training engine: a model, its optimisers and its ranks, behind a few plain calls.

One rank trains the bare model. Several ranks shard it with FSDP2 (gloo on CPU, NCCL on GPU); so
does one rank that computes with weights of 16 bits, for which FSDP casts them. With `no_shard` and
weights of 32 bits, each of several ranks trains a bare model of its own, and they stay equal.
Losses are sums over a rank's share divided by a count of the global batch, so gradients of ranks
are added up; FSDP averages them, which `backward` undoes.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlinf.hybrid_engines.fsdp.fill import fill, parts_of
from rlinf.hybrid_engines.fsdp.initial_tensors import InitialTensors
from rlinf.hybrid_engines.fsdp.optimizer import ACTOR, OptimizerSpec, make_optimizers
from rlinf.hybrid_engines.fsdp.precision import training_precision
from rlinf.hybrid_engines.fsdp.replicas import add_up_gradients
from rlinf.hybrid_engines.fsdp.sharding import shard, whole
from rlinf.models.deferred import take_deferred
from rlinf.scheduler.collective import group_store
from rlinf.utils.shards import ShardPlace

_COMPILER = "inductor"


class TrainEngine:
    """Trains one model on all ranks of a group.

    Args:
        model: the model, on the CPU and equal on each rank, its weights in float32; or built
            without weights, see `rlinf.models.deferred`: each rank then gets only its shards.
        cfg: the `actor` section.
        device: where to train.
        world_size: number of ranks.
        total_steps: optimiser steps of the whole run, for schedules.
        on_nan: `stop` raises when a gradient is not finite; `skip` leaves that step out.
        keep_reference: whether to keep the model as it is now, to be asked later.
        shares_frozen: keep only what is trained of it where weights are frozen; it is then asked in
            the place of the model, and cannot be changed. Else a copy of all weights is kept.
        casts_alone: one rank, too, computes in 16 bits by casting weights instead of autocast.
        optimizers: what trains which parameters, by name; None is one that trains all of them by
            the `optim` section.

    Attributes:
        model: the model that is trained.
        sharded: whether it is FSDP's.
        replicated: whether each of several ranks has all of it, without FSDP.
        reference: the frozen copy, or None.
        initial: what is kept of the reference where the model shares the rest, or None.
        precision: the number formats that are used.
        optimizers: by name; methods that take a name mean the first one by default.
        skipped: steps left out because their gradient was not finite.
        offloads: how often the device was given up.
    """

    def __init__(
        self,
        model: nn.Module,
        cfg: Any,
        device: torch.device,
        world_size: int,
        total_steps: int,
        *,
        on_nan: str = "stop",
        keep_reference: bool = False,
        shares_frozen: bool = False,
        casts_alone: bool = False,
        optimizers: Mapping[str, OptimizerSpec] | None = None,
    ):
        self.cfg = cfg
        self.device = device
        self.world_size = world_size
        self.skipped = self.offloads = 0
        self._on_nan = on_nan
        self.precision = training_precision(cfg, device, world_size, casts_alone)
        casts = self.precision.params is not None
        unsharded = cfg.fsdp_config.sharding_strategy == "no_shard" and not casts
        self.replicated = world_size > 1 and unsharded
        self.sharded = (world_size > 1 or casts) and not self.replicated
        if (world_size > 1 or casts) and not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            alone = world_size == 1
            dist.init_process_group(
                backend,
                store=dist.HashStore() if alone else group_store.of_workers(),
                rank=0 if alone else int(os.environ["RANK"]),
                world_size=world_size,
            )
        deferred = take_deferred(model)
        if deferred is None:
            model = model.to(device)
            if world_size > 1:
                for tensor in model.state_dict().values():
                    dist.broadcast(tensor, 0)
        shares = shares_frozen and not all(p.requires_grad for p in model.parameters())
        copies = keep_reference and not shares
        self.reference = copy.deepcopy(model).requires_grad_(False) if copies else None
        if self.sharded:
            model = shard(model, cfg.fsdp_config, self.precision, device)
            if self.reference is not None:
                self.reference = shard(self.reference, cfg.fsdp_config, self.precision, device)
        if deferred is not None:
            fill(model, deferred.parts, device, world_size)
            if self.reference is not None:
                fill(self.reference, parts_of(model), device, world_size)
        self.initial = InitialTensors(model) if keep_reference and shares else None
        if cfg.compile_model:
            # In place: names of weights stay as they are.
            model.compile(backend=_COMPILER)
        self.model = model
        specs = optimizers or {ACTOR: OptimizerSpec(cfg.optim)}
        self.optimizers = make_optimizers(model, specs, total_steps, fused=not self.sharded)
        self._main = next(iter(self.optimizers.values()))
        self._model_here = self._optimizer_here = True
        self._reference_waits = self.reference is not None and cfg.offload_reference
        if self._reference_waits:
            self.reference.to("cpu")

    @property
    def has_reference(self) -> bool:
        """Whether the model of the beginning can be asked."""
        return self.reference is not None or self.initial is not None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimiser, as torch knows it."""
        return self._main.optimizer

    @property
    def steps(self) -> int:
        """Steps that the first optimiser has made."""
        return self._main.steps

    @property
    def progress(self) -> int:
        """Steps of the first optimiser planned so far, made or not; its schedule follows them."""
        return self._main.progress

    def set_progress(self, steps: int) -> None:
        """Put the schedule of the first optimiser where it is after so many planned steps."""
        self._main.set_progress(steps)

    def advance(self, steps: int = 1) -> None:
        """Move that schedule on by planned optimiser steps, whether they were made or not."""
        self.set_progress(self.progress + steps)

    @property
    def values_learn_alone(self) -> bool:
        """Whether the next step of the first optimiser is one of the value function alone."""
        return self._main.values_learn_alone

    @property
    def only_values_learned(self) -> bool:
        """Whether all steps of it so far were for the value function alone, as the first are."""
        return self._main.only_values_learned

    def begin_phase(
        self, optim: Any, total_steps: int, *, value_steps: int = 0, forget: bool = True
    ) -> None:
        """Go on with the same weights as another training, of the first optimiser.

        Args:
            optim: its `optim` section.
            total_steps: its optimiser steps, for schedules.
            value_steps: those, at first, in which the value function learns alone.
            forget: begin with a fresh optimiser, and with the present weights as reference.
        """
        self._main.follow(optim, total_steps, value_steps)
        if not forget:
            return
        self._main.forget()
        if self.initial is not None:
            self.initial.renew()
        if self.reference is not None:
            own = self.model.state_dict()
            with torch.no_grad():
                for name, tensor in self.reference.state_dict().items():
                    tensor.copy_(own[name])

    # -- ranks ----------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Take the greatest over ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, op: Any) -> Tensor:
        if self.world_size > 1:
            # NCCL has no access to tensors of the host.
            moved = tensor.to(self.device)
            dist.all_reduce(moved, op)
            if moved is not tensor:
                tensor.copy_(moved)
        return tensor

    def agree(self, number: int) -> int:
        """Return the greatest of the numbers that ranks pass; all ranks call it."""
        if self.world_size == 1:
            return number
        return int(self.all_reduce_max(torch.tensor([number], dtype=torch.int64)))

    def gather_objects(self, item: Any) -> list[Any]:
        """Return what each rank has, in the order of ranks; all ranks call it."""
        if self.world_size == 1:
            return [item]
        items: list[Any] = [None] * self.world_size
        dist.all_gather_object(items, item)
        return items

    def exchange_objects(self, items: Sequence[Any]) -> list[Any]:
        """Send something to each rank, and to no other; all ranks call it.

        Args:
            items: what each rank gets, in the order of ranks.

        Returns:
            What each rank has sent to this one.
        """
        if self.world_size == 1:
            return list(items)
        pickled = [bytearray(pickle.dumps(item)) for item in items]
        payloads = [torch.frombuffer(data, dtype=torch.uint8) for data in pickled]
        sent = torch.tensor([len(payload) for payload in payloads], device=self.device)
        sizes = torch.empty_like(sent)
        dist.all_to_all_single(sizes, sent)
        received = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=self.device)
        leaving = torch.cat(payloads).to(self.device)
        dist.all_to_all_single(received, leaving, sizes.tolist(), sent.tolist())
        parts = received.cpu().split(sizes.tolist())
        return [pickle.loads(part.numpy()) for part in parts]

    # -- steps ----------------------------------------------------------------------------------

    def forward(self, **kwargs: Any) -> Any:
        """Run the model, in the number format of the config."""
        with self._autocast():
            return self.model(**kwargs)

    @torch.no_grad()
    def infer(self, *, reference: bool = False, **kwargs: Any) -> Any:
        """Run the model, or the one of the beginning, without gradients.

        Args:
            reference: the one of the beginning; only in a block of `reference_at_hand`.
            **kwargs: arguments of the forward pass.
        """
        model = self.reference if reference and self.initial is None else self.model
        assert self.initial is None or self.initial.in_place == reference
        with self._autocast():
            out = model(**kwargs)
        if self.sharded:
            # FSDP keeps the outermost weights gathered, for a backward pass that does not come.
            model.reshard()
        return out

    @contextlib.contextmanager
    def reference_at_hand(self) -> Iterator[None]:
        """Let the model of the beginning be asked: on the device, wherever it is otherwise."""
        if self.initial is not None:
            self.weights_changed()
            try:
                with self.initial.take_their_place():
                    yield
            finally:
                self.weights_changed()
            return
        if self._reference_waits:
            self.reference.to(self.device)
        try:
            yield
        finally:
            if self._reference_waits:
                self.reference.to("cpu")

    def _autocast(self) -> contextlib.AbstractContextManager:
        if self.precision.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.precision.autocast)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradient of one micro-batch.

        Args:
            loss: this micro-batch's share of the global loss.
            last: whether it is the last one before the step, after which ranks exchange gradients.
        """
        if self.sharded:
            once = self.cfg.fsdp_config.enable_gradient_accumulation
            self.model.set_requires_gradient_sync(last or not once)
            loss = loss * self.world_size
        loss.backward()
        if last and self.replicated:
            add_up_gradients(self.model.parameters(), self.precision.reduce)

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradient that has been added up."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def drop_gradients(self) -> None:
        """Forget the gradient that has been added up."""
        for optimizer in self.optimizers.values():
            optimizer.drop_gradients()

    def step(self, name: str | None = None) -> dict[str, float] | None:
        """Clip the gradient and make an optimiser step; `advance` moves schedules on.

        The gradients of all parameters are forgotten: those that another optimiser trains have no
        part in its norm, and none is left over for the next step. So it is with those of the policy
        while the value function learns alone.

        Args:
            name: of the optimiser; None is the first.

        Returns:
            The norm of the gradient and the learning rate that was used; None if the step was left
            out, on all ranks alike, since the gradient is not finite.

        Raises:
            FloatingPointError: the gradient is not finite; names the tensors.
        """
        optimizer = self._main if name is None else self.optimizers[name]
        if optimizer.values_learn_alone:
            optimizer.leave_policy()
        norm = optimizer.gradient_norm()
        size = float(whole(norm))
        finite = math.isfinite(size)
        if not finite and self._on_nan == "stop":
            raise FloatingPointError(
                f"the gradient of optimiser step {optimizer.steps + 1} is not finite (norm {size}) "
                f"in {', '.join(optimizer.not_finite()[:8]) or 'its norm'}; lower actor.optim.lr, "
                "look for extreme rewards, or leave such steps out with runner.on_nan: skip"
            )
        rate = optimizer.step(norm) if finite else 0.0
        self.skipped += not finite
        self.drop_gradients()
        return {"grad_norm": size, "lr": rate} if finite else None

    def step_unread(self, name: str) -> Tensor:
        """Make an optimiser step like `step`, without waiting for the device.

        A step whose gradient is not finite is left out; `read_steps` says so afterwards.

        Args:
            name: of the optimiser.

        Returns:
            The norm of the gradient, `[]`, on the device.
        """
        optimizer = self.optimizers[name]
        norm = optimizer.gradient_norm()
        size = whole(norm)
        if not self.sharded:
            optimizer.step_if_finite(norm)
        elif math.isfinite(float(size)):
            optimizer.step(norm)
        else:
            # Counted all the same, as by a fused optimiser.
            optimizer.uncount(-1)
        self.drop_gradients()
        # Modules that had no part in the backward pass may still have them gathered.
        self.weights_changed()
        return size

    def read_steps(self, name: str, norms: Tensor) -> int:
        """Take note of what came of steps; return how many were made.

        Args:
            name: of the optimiser.
            norms: what `step_unread` has returned, `[k]`, on the host.

        Raises:
            FloatingPointError: a gradient was not finite, and `on_nan` is `stop`.
        """
        optimizer = self.optimizers[name]
        bad = (~torch.isfinite(norms)).nonzero().flatten().tolist()
        first = optimizer.steps - len(norms)
        optimizer.uncount(len(bad))
        self.skipped += len(bad)
        if bad and self._on_nan == "stop":
            raise FloatingPointError(
                f"the gradient of step {first + bad[0] + 1} of the optimiser {name} is not finite "
                f"(norm {float(norms[bad[0]])}); lower its learning rate, look for extreme rewards,"
                " or leave such steps out with runner.on_nan: skip"
            )
        return len(norms) - len(bad)

    # -- weights --------------------------------------------------------------------------------

    @property
    def place(self) -> ShardPlace:
        """Which part of which copy of the model this rank has."""
        if self.replicated:
            return ShardPlace(copy=dist.get_rank(), copies=self.world_size)
        return ShardPlace.of(self.model)

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """All weights and buffers, as sharded as they are."""
        for name, tensor in self.model.state_dict().items():
            yield name, tensor.detach()

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All weights and buffers, whole, on each rank; every rank has to iterate."""
        for name, tensor in self.shards():
            yield name, whole(tensor)

    def weights_changed(self, *, reference: bool = False) -> None:
        """Forget gathered weights: what is sharded has been changed outside of `step`.

        Args:
            reference: of the frozen copy, and not of the model.
        """
        if self.sharded:
            for module in (self.reference if reference else self.model).modules():
                if hasattr(module, "reshard"):
                    module.reshard()

    # -- device memory --------------------------------------------------------------------------

    def offload(self) -> None:
        """Move weights and optimiser to the host, until `onload`; all ranks call it."""
        self.offloads += 1
        for model in filter(None, (self.model, self.reference)):
            model.to("cpu")
        for optimizer in self.optimizers.values():
            optimizer.offload()
        self._model_here = self._optimizer_here = False
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()

    def onload(self, optimizer: bool = True) -> None:
        """Bring back what `offload` moved away; does nothing if it is there.

        Args:
            optimizer: whether the optimisers are needed too, or only the weights.
        """
        if not self._model_here:
            reference = None if self._reference_waits else self.reference
            for model in filter(None, (self.model, reference)):
                model.to(self.device)
            self._model_here = True
        if optimizer and not self._optimizer_here:
            for each in self.optimizers.values():
                each.onload(self.device)
            self._optimizer_here = True
