"""The training engine: a model, its optimiser and its ranks, behind a few plain calls.

One rank trains the bare model. Several ranks shard it with FSDP2 (gloo on CPU, NCCL on GPU). Losses
are sums over a rank's share divided by a count of the global batch, so gradients of ranks are added
up; FSDP averages them, which `backward` undoes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class TrainEngine:
    """Trains one model on all ranks of a group.

    Args:
        model: the model, on the CPU and equal on each rank.
        cfg: the `actor` section.
        device: where to train.
        world_size: number of ranks.
        total_steps: optimiser steps of the whole run, for schedules.
    """

    def __init__(
        self, model: nn.Module, cfg: Any, device: torch.device, world_size: int, total_steps: int
    ):
        self.cfg = cfg
        self.device = device
        self.world_size = world_size
        self.steps = 0
        if world_size > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        model = model.to(device)
        if world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)
            model = _shard(model, cfg.fsdp_config)
        self.model = model
        optim = cfg.optim
        heads = [p for n, p in model.named_parameters() if "value" in n or "critic" in n]
        chosen = {id(p) for p in heads}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        groups = [{"params": rest, "lr": optim.lr}]
        if heads:
            groups.append({"params": heads, "lr": optim.value_lr or optim.lr})
        self.optimizer = torch.optim.AdamW(
            groups,
            betas=(optim.adam_beta1, optim.adam_beta2),
            eps=optim.adam_eps,
            weight_decay=optim.weight_decay,
            fused=world_size == 1,
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, _schedule(optim, total_steps)
        )

    # -- ranks ----------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Takes the greatest over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    # -- steps ----------------------------------------------------------------------------------

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds the gradient of one micro-batch.

        Args:
            loss: this micro-batch's share of the global loss.
            last: whether it is the last one before the step, after which ranks exchange gradients.
        """
        if self.world_size > 1:
            self.model.set_requires_gradient_sync(last)
            loss = loss * self.world_size
        loss.backward()

    def step(self) -> dict[str, float]:
        """Clips the gradient and makes an optimiser step.

        Raises:
            FloatingPointError: the gradient is not finite; names the tensors.
        """
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        limit = self.cfg.optim.clip_grad
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()
        size = float(norm)
        if not math.isfinite(size):
            bad = [
                name
                for name, p in self.model.named_parameters()
                if p.grad is not None and not torch.isfinite(_whole(p.grad)).all()
            ]
            raise FloatingPointError(
                f"the gradient is not finite (norm {size}) in {', '.join(bad[:8]) or 'its norm'}; "
                "lower actor.optim.lr, or look for extreme rewards"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        self.steps += 1
        return {"grad_norm": size, "lr": self.scheduler.get_last_lr()[0]}

    # -- weights --------------------------------------------------------------------------------

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All weights and buffers, whole, on each rank; every rank has to iterate."""
        for name, tensor in self.model.state_dict().items():
            yield name, _whole(tensor).detach()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _shard(model: nn.Module, cfg: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    names = set(cfg.wrap_policy.transformer_layer_cls_to_wrap) or set(
        getattr(model, "_no_split_modules", ())
    )
    options = {"reshard_after_forward": cfg.reshard_after_forward}
    for module in model.modules():
        if type(module).__name__ in names:
            fully_shard(module, **options)
    return fully_shard(model, **options)


def _schedule(cfg: Any, total_steps: int) -> Any:
    """Factor on the learning rate by optimiser step: a linear warm-up, then the chosen course."""
    total = cfg.total_training_steps or max(1, total_steps)
    warmup = max(cfg.lr_warmup_steps, int(cfg.lr_warmup_steps_ratio * total))
    floor = cfg.min_lr / cfg.lr if cfg.min_lr_rate is None else cfg.min_lr_rate

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if cfg.lr_scheduler == "constant":
            return 1.0
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        if cfg.lr_scheduler == "linear":
            return floor + (1 - floor) * (1 - done)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(2 * math.pi * cfg.num_cycles * done))

    return factor
