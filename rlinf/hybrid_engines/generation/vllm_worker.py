"""What runs inside of vLLM's processes: weights arrive there, and log-probabilities leave.

vLLM imports this module in each of its workers (`worker_extension_cls`) before it builds the
model. Everything that reaches these functions is made of numbers, strings and bytes, so vLLM's
default serialisation carries it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing import reductions
from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

from rlinf.hybrid_engines.generation.vllm_weights import BACKEND, room


@dataclass
class Bucket(WeightTransferUpdateInfo):
    """Tensors that lie one behind the other in shared memory.

    Attributes:
        names: Of the tensors, as in the model's state dict.
        formats: Of their numbers, such as `bfloat16`.
        shapes: Of the tensors.
        size: Bytes of all of them.
        handles: CUDA memory by the UUID of its device, as `vllm_weights.exported` describes it.
        path: A file with the bytes, where there is no CUDA.
    """

    names: list[str]
    formats: list[str]
    shapes: list[list[int]]
    size: int
    handles: dict[str, list[Any]]
    path: str | None = None

    def tensors(self, flat: Tensor) -> list[tuple[str, Tensor]]:
        """Return the tensors as views of the bytes."""
        found, begin = [], 0
        for name, number, shape in zip(self.names, self.formats, self.shapes, strict=True):
            dtype = getattr(torch, number)
            count = dtype.itemsize * int(torch.Size(shape).numel())
            found.append((name, flat[begin : begin + count].view(dtype).view(shape)))
            begin += room(count)
        return found


class BucketTransfer(IPCWeightTransferEngine):
    """Receives weights in buckets, by CUDA IPC or through a file in memory.

    vLLM's own `ipc` asks for pickled arguments of torch functions, which its default serialisation
    refuses. Start and end of an update are vLLM's own: layer by layer, with what vLLM does to
    weights after loading.
    """

    update_info_cls = Bucket

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one bucket; the sender may write into it again when this is through."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def receive_weights(self, update_info: Bucket) -> None:
        """Copy a bucket and load its tensors."""
        bucket = update_info
        if self.device.type == "cuda":
            uuid = str(torch.cuda.get_device_properties(self.device).uuid)
            if uuid not in bucket.handles:
                raise ValueError(
                    f"weights were sent to the devices {', '.join(bucket.handles)}, but a worker "
                    f"of vLLM uses {uuid}: let CUDA_VISIBLE_DEVICES name the same devices to both"
                )
            shared = _imported(bucket.handles[uuid], bucket.size, self.device.index)
        else:
            shared = torch.from_file(bucket.path, shared=True, size=bucket.size, dtype=torch.uint8)
        # vLLM keeps tensors until all of a layer have come: the bucket is another one by then.
        self.model.load_weights(bucket.tensors(shared.clone()))


def _imported(handle: list[Any], size: int, device: int) -> Tensor:
    offset, memory, storage_size, storage_offset, *counters = handle
    return reductions.rebuild_cuda_tensor(
        Tensor,
        torch.Size([size]),
        (1,),
        offset,
        torch.storage.TypedStorage,
        torch.uint8,
        device,
        memory,
        storage_size,
        storage_offset,
        False,
        *counters,
    )


class WorkerExtension:
    """Methods that vLLM adds to its workers, for `collective_rpc`."""

    def keep_full_logprobs(self) -> None:
        """Make log-probabilities those of logits / temperature, whatever top-k and top-p cut."""
        sampler = self.model_runner.sampler
        if isinstance(sampler, nn.Module):
            sampler.topk_topp_sampler = _FullLogprobs(sampler.topk_topp_sampler)
        else:
            mixed = type("FullLogprobsSampler", (_BeforeTheCut, type(sampler)), {})
            sampler.__class__ = mixed


class _FullLogprobs(nn.Module):
    """The last stage of the sampler of vLLM's first model runner."""

    def __init__(self, cutting: nn.Module):
        super().__init__()
        self.cutting = cutting

    def forward(self, logits: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        full = logits.log_softmax(-1, dtype=torch.float32)
        sampled, _ = self.cutting(logits, *args, **kwargs)
        return sampled, full


class _BeforeTheCut:
    """The sampler of vLLM's second model runner, which returns the logits that it drew from."""

    def apply_sampling_params(self, *args: Any, **kwargs: Any) -> Tensor:
        logits = super().apply_sampling_params(*args, **kwargs)
        # The cut may write into them.
        self._full = logits.clone()
        return logits

    def sample(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        sampled, _ = super().sample(*args, **kwargs)
        full, self._full = self._full, None
        return sampled, full


WeightTransferEngineFactory.register_engine(BACKEND, BucketTransfer)
