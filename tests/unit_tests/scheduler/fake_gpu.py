"""A GPU that is not there: tensors as far as CUDA IPC and the codec look at them."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest
import torch

from rlinf.scheduler.collective import codec, cuda_ipc, payload

PARAMETERS = list(inspect.signature(cuda_ipc.reductions.rebuild_cuda_tensor).parameters)


class FakeTensor:
    """A CUDA tensor as far as the exporter looks at it."""

    is_cuda, dtype, shape, nbytes, shares = True, torch.float32, (4,), 16, True

    def __init__(self, device: int = 0, storage: Any = None, count: int = 4) -> None:
        self.device = torch.device("cuda", device)
        self.count = count
        self.storage = storage or types.SimpleNamespace(_cdata=id(self))

    def detach(self) -> FakeTensor:
        return self

    def clone(self) -> FakeTensor:
        copy = FakeTensor(self.device.index)
        copy.shares = self.shares
        return copy

    def cpu(self) -> torch.Tensor:
        return HOST_COPY

    def get_device(self) -> int:
        return self.device.index

    def untyped_storage(self) -> Any:
        return self.storage

    def data_ptr(self) -> int:
        return self.storage._cdata

    def numel(self) -> int:
        return self.count

    def dim(self) -> int:
        return len(self.shape)

    def is_contiguous(self) -> bool:
        return True


HOST_COPY = torch.full((4,), 7.0)


class FakeWeakRef:
    def __init__(self, storage: Any) -> None:
        self.dead = False

    def expired(self) -> bool:
        return self.dead


class FakeGpu:
    """Two visible GPUs, and a list of what torch was asked to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared: list[FakeTensor] = []
        self.rebuilt: list[dict[str, Any]] = []
        self.counted_down: list[tuple] = []
        self.log: list[str] = []
        self.uuids = ["GPU-a", "GPU-b"]
        cuda = torch.cuda
        monkeypatch.setattr(cuda_ipc.reductions, "reduce_tensor", self.reduce)
        monkeypatch.setattr(cuda_ipc.reductions, "rebuild_cuda_tensor", self.rebuild)
        monkeypatch.setattr(cuda_ipc.reductions, "StorageWeakRef", FakeWeakRef)
        monkeypatch.setattr(cuda_ipc, "_rebuild_parameters", lambda: PARAMETERS)
        monkeypatch.setattr(cuda, "device_count", lambda: len(self.uuids))
        monkeypatch.setattr(
            cuda, "get_device_properties", lambda i: types.SimpleNamespace(uuid=self.uuids[i])
        )
        monkeypatch.setattr(cuda, "device", FakeDevice)
        monkeypatch.setattr(cuda, "ipc_collect", lambda: self.log.append("collect"))
        stream = types.SimpleNamespace(synchronize=lambda: self.log.append("synchronize"))
        monkeypatch.setattr(cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(
            torch.UntypedStorage,
            "_release_ipc_counter_cuda",
            lambda *counter: self.counted_down.append(counter),
        )

    def reduce(self, tensor: FakeTensor) -> tuple:
        if not tensor.shares:
            raise RuntimeError("no handle")
        self.shared.append(tensor)
        values: dict[str, Any] = dict.fromkeys(PARAMETERS, 0)
        values["storage_device"] = tensor.device.index
        values["storage_handle"] = b"handle"
        values["ref_counter_handle"] = b"counter"
        values["ref_counter_offset"] = len(self.shared)
        return None, tuple(values.values())

    def rebuild(self, *arguments: Any) -> Any:
        self.rebuilt.append(dict(zip(PARAMETERS, arguments, strict=True)))
        return torch.arange(4.0)


class FakeDevice:
    def __init__(self, index: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


def forget_devices() -> None:
    """Let the GPUs of the process be looked up again."""
    cuda_ipc._uuid.cache_clear()
    cuda_ipc.visible_devices.cache_clear()


def let_codec_take_fakes(patch: pytest.MonkeyPatch) -> None:
    """Let the codec take fake tensors for real ones."""
    for name in ("is_cpu", "is_nested", "is_meta", "requires_grad"):
        patch.setattr(FakeTensor, name, False, raising=False)
    patch.setattr(FakeTensor, "layout", torch.strided, raising=False)
    for pickler in (codec._Pickler, codec._cloud_pickler()):
        patch.setitem(pickler.dispatch_table, FakeTensor, codec._reduce_tensor)
    patch.setattr(payload, "cuda_in_use", lambda: True)
