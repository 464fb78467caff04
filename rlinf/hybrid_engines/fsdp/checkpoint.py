"""Weights, buffers and optimiser of a training engine, saved by torch.distributed.checkpoint.

Each rank writes its own shards as safetensors; a checkpoint can be loaded by any number of ranks.
Loading unpickles nothing.
"""

from __future__ import annotations

import errno
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.hybrid_engines.fsdp.engine import TrainEngine

# It warns whenever it runs without a process group, which is what one rank asks for.
warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint")


MODEL = "model."
"""What the names of the tensors of the model begin with."""


def read_model(folder: Path) -> dict[str, Tensor]:
    """Read weights and buffers of the model, whole, whatever number of ranks wrote them.

    Args:
        folder: what `EngineCheckpoint.write` was given.

    Returns:
        Tensors by their names in the model, on the CPU.

    Raises:
        ValueError: the folder has no tensors of a model.
    """
    import torch.distributed.checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(folder))
    known = reader.read_metadata().state_dict_metadata if any(folder.glob("*.safetensors")) else {}
    tensors = {
        name: torch.empty(facts.size, dtype=facts.properties.dtype)
        for name, facts in known.items()
        if name.startswith(MODEL)
    }
    if not tensors:
        raise ValueError(f"{folder} has no tensors of a model")
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return {name.removeprefix(MODEL): tensor for name, tensor in tensors.items()}


class EngineCheckpoint:
    """Saves and loads one engine; all ranks call the same methods in the same order.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: TrainEngine):
        self._engine = engine
        # Training goes on while a checkpoint is written, so it must not share a process group.
        self._group = dist.new_group(backend="gloo") if engine.world_size > 1 else None

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of this rank's shards on the host, which training no longer changes."""
        return {name: _copy(tensor) for name, tensor in self._tensors().items()}

    def write(self, snapshot: dict[str, Tensor], folder: Path) -> None:
        """Write a snapshot; may run in a thread of its own.

        Raises:
            OSError: a rank could not write its shards.
        """
        # Imported here: it takes most of a second, and many runs never save.
        import torch.distributed.checkpoint as dcp

        folder.mkdir(parents=True, exist_ok=True)
        try:
            dcp.save(
                snapshot,
                storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True),
                process_group=self._group,
                no_dist=self._group is None,
            )
        except dcp.CheckpointException as error:
            # No `Exception`: whoever catches those would take the snapshot for written.
            rank, (failure, _) = next(iter(error.failures.items()))
            if isinstance(failure, OSError):
                raise OSError(failure.errno, f"{failure.strerror} (rank {rank})") from None
            raise OSError(errno.EIO, f"rank {rank}: {failure}") from None

    def read(self, folder: Path, only_model: bool = False) -> None:
        """Bring weights, buffers and optimiser back to what they were.

        Args:
            folder: what `write` was given.
            only_model: leave optimiser and reference policy as they are.

        Raises:
            ValueError: the checkpoint has no such tensor, or one of another shape.
        """
        import torch.distributed.checkpoint as dcp

        tensors = self._model_tensors() if only_model else self._tensors()
        try:
            dcp.load(
                tensors,
                storage_reader=dcp.HuggingFaceStorageReader(str(folder)),
                process_group=self._group,
                no_dist=self._group is None,
            )
        except (dcp.CheckpointException, RuntimeError) as error:
            raise ValueError(
                f"the weights of {folder} do not fit this model: {_first_line(error)}; is it the "
                "checkpoint of another model section?"
            ) from error

    def _model_tensors(self) -> dict[str, Tensor]:
        return {f"{MODEL}{name}": t for name, t in self._engine.model.state_dict().items()}

    def _tensors(self) -> dict[str, Tensor]:
        """Return all tensors: `model.`, `reference.<name>` and `optim.<parameter>.<what>`."""
        out = self._model_tensors()
        for optimizer in self._engine.optimizers.values():
            out |= {f"optim.{name}": tensor for name, tensor in optimizer.state_tensors().items()}
        reference = self._engine.reference or self._engine.initial
        if reference is not None:
            of_reference = reference.state_dict()
            out |= {f"reference.{name}": tensor for name, tensor in of_reference.items()}
        return out


def _copy(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def counters(engine: TrainEngine) -> dict[str, Any]:
    """Return what else has to be kept of an engine: plain data."""
    of_each = {name: optimizer.counters() for name, optimizer in engine.optimizers.items()}
    return {"skipped": engine.skipped, "optimizers": of_each}


def set_counters(engine: TrainEngine, state: dict[str, Any]) -> None:
    """Go on from counters that `counters` returned."""
    engine.skipped = state["skipped"]
    for name, optimizer in engine.optimizers.items():
        optimizer.set_counters(state["optimizers"][name])
