"""Versions of a language model's policy, received into a plain model, whole or as adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.models.lora import AdapterStore, merged_tensors


class PolicyReceiver:
    """Keeps a plain model at the actor's policy.

    With `weight_syncer.lora: adapters` only these come. They are merged into the base weights that
    the model has when this is made, so make it before the weights are rounded to another format:
    what comes out is then what the actor would have merged and sent, rounded once.

    Args:
        worker: who receives.
        cfg: the configuration.
        model: a model of transformers without adapters; it may change device and format later.
    """

    def __init__(self, worker: Any, cfg: Any, model: nn.Module) -> None:
        self._receiver = WeightReceiver(worker, cfg)
        self._model = model
        self._store: AdapterStore | None = None
        if cfg.weight_syncer.lora == "adapters":
            self._store = AdapterStore(model, cfg.actor.model)

    def receive(self) -> int:
        """Bring the model to the next version; return its number."""
        if self._store is None:
            return self._receiver.receive(self._model)
        version = self._receiver.receive(self._store)
        self._store.merge()
        return version

    def forget(self) -> None:
        """Say that the weights have been changed by somebody else."""
        self._receiver.forget()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All weights of the model; one that has several names comes once."""
        return merged_tensors(self._model, lambda tensor: tensor)
