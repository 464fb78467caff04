"""Turn any Python object into one small header plus raw buffers, and back without copying.

The header is a protocol-5 pickle. Tensors and arrays of at least ``INLINE_BYTES`` leave it as
out-of-band buffers that alias the sender's memory; smaller ones travel inside it, so that many
small tensors are one message. Decoded tensors and arrays are views on the buffers given to
:func:`decode`: aligned, shared and writable as those are.

What arrives:
    * CPU tensors arrive contiguous with equal values. Tensors that shared storage no longer do.
    * A leaf keeps ``requires_grad``, a ``Parameter`` stays one, a tensor in a graph is detached.
    * Sparse, quantised, nested, meta and other subclassed tensors use torch's own pickling.
    * Device tensors go through ``device_hook``. Without one, or where it returns None, they are
      staged through the host and arrive on the current device of the same type, or on the CPU
      where the receiver has none.
    * NumPy arrays of numbers keep dtype and order (C or Fortran) and arrive writable.

torch is imported only by a receiver of tensors; a process without torch can exchange all else.

Security: unpickling runs code. :func:`decode` must only see messages of authenticated peers.
"""

from __future__ import annotations

import copyreg
import functools
import io
import operator
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

INLINE_BYTES = 4096
"""Buffers below this size are copied into the header: a copy is cheaper than one more frame."""

_ATOMS = frozenset({type(None), bool, int, float, str})
_REQUIRES_GRAD, _PARAMETER = 1, 2
_NUMPY_DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 float32 float64 complex64 complex128"
).split()
_CARRIERS = {
    "bfloat16": "int16",
    "complex32": "int32",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "float4_e2m1fn_x2": "uint8",
}
"""Tensor types that NumPy lacks, and the integers of the same width that carry them."""

_hooks = threading.local()


class Encoded(NamedTuple):
    """A message: the pickled header and the buffers it refers to, in order."""

    header: bytes
    """Pickle stream without the large buffers."""
    buffers: list[memoryview]
    """Contiguous byte views on the sender's memory; valid while they are referenced."""

    @property
    def nbytes(self) -> int:
        """Size of header and buffers together."""
        return len(self.header) + sum(b.nbytes for b in self.buffers)


def encode(
    obj: Any,
    device_hook: Callable[[torch.Tensor], Any] | None = None,
    hook_host: bool = False,
) -> Encoded:
    """Split an object into a header and out-of-band buffers.

    Args:
        obj: Anything that pickle or cloudpickle can serialise.
        device_hook: Called once for every tensor (detached) that is not on the CPU; returns a
            small picklable token for the receiver's hook, or None to stage it on the host. Its
            exceptions pass through. If encode fails, tokens handed out so far are never used.
        hook_host: Call the hook for tensors on the CPU, too.

    Returns:
        The message. Its buffers alias ``obj``: do not write to it before they have been sent.

    Raises:
        TypeError: Something inside cannot be pickled; the message says where.
    """
    if type(obj) in _ATOMS:
        return Encoded(pickle.dumps(obj, 5), [])
    if type(obj) is bytes:
        if len(obj) < INLINE_BYTES:
            return Encoded(pickle.dumps(obj, 5), [])
        obj = _LargeBytes(obj)
    if device_hook is None:
        return _encode(obj)
    outer, _hooks.encode = getattr(_hooks, "encode", None), _Tokens(device_hook, hook_host)
    try:
        return _encode(obj)
    except _HookFailed as failed:
        raise failed.error from failed.error.__cause__
    finally:
        _hooks.encode = outer


def decode(
    header: bytes | memoryview,
    buffers: Sequence[Any] = (),
    device_hook: Callable[[Any], torch.Tensor] | None = None,
) -> Any:
    """Rebuild the object of :func:`encode` on top of the given buffers.

    Only call this with data of an authenticated peer: unpickling can run any code.

    Args:
        header: ``Encoded.header``.
        buffers: The buffers in order; tensors and arrays become views on them.
        device_hook: Turns a token of the sender's hook back into a tensor.

    Returns:
        The object.
    """
    if not buffers and device_hook is None:
        return pickle.loads(header)
    views = [memoryview(b) for b in buffers]
    if device_hook is None:
        return pickle.loads(header, buffers=views)
    outer, _hooks.decode = getattr(_hooks, "decode", None), device_hook
    try:
        return pickle.loads(header, buffers=views)
    finally:
        _hooks.decode = outer


class _Reducers(dict):
    """Reduce function by type: ours for tensors and arrays, else what pickle would do itself."""

    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        torch = sys.modules.get("torch")
        # A half-imported torch in another thread has no Parameter yet, and no tensors either.
        parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
        if parameter is not None and cls in (torch.Tensor, parameter):
            self[cls] = _reduce_tensor
            return _reduce_tensor
        reducer = copyreg.dispatch_table.get(cls)
        if reducer is not None:
            return reducer
        if issubclass(cls, type):
            raise KeyError(cls)
        # Remembering the default spares this Python call for each further object of the class.
        # Only for classes of modules: those made at run time must stay collectable.
        reducer = operator.methodcaller("__reduce_ex__", 5)
        if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls:
            self[cls] = reducer
        return reducer


class _Pickler(pickle.Pickler):
    """The C pickler with our reduce functions; nothing in it calls Python per plain object."""

    dispatch_table = _Reducers()


@functools.cache
def _cloud_pickler() -> type[pickle.Pickler]:
    import cloudpickle

    class CloudPickler(cloudpickle.Pickler):
        class _Table(_Reducers):
            def __missing__(self, cls: type) -> Callable[[Any], Any]:
                if cls in cloudpickle.Pickler.dispatch_table:
                    return cloudpickle.Pickler.dispatch_table[cls]
                return super().__missing__(cls)

        dispatch_table = _Table(_Pickler.dispatch_table)

    return CloudPickler


def _dump(pickler: type[pickle.Pickler], obj: Any) -> Encoded:
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < INLINE_BYTES:
            return True
        buffers.append(view)
        return False

    file = io.BytesIO()
    pickler(file, 5, buffer_callback=keep).dump(obj)
    return Encoded(file.getvalue(), buffers)


def _encode(obj: Any) -> Encoded:
    try:
        message = _dump(_Pickler, obj)
        # Plain pickle names the classes of a script, which the receiver's __main__ lacks.
        if b"__main__" not in message.header:
            return message
    except (_HookFailed, MemoryError):
        raise
    except Exception:  # cloudpickle may know better; if it does not, its error is raised
        pass
    try:
        return _dump(_cloud_pickler(), obj)
    except (_HookFailed, MemoryError):
        raise
    except Exception as error:
        path, culprit = _locate(obj)
        kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}"
        raise TypeError(f"cannot send {path}, a {kind}: {error}") from error


class _LargeBytes:
    """Lets a large top-level ``bytes`` leave the header; the receiver makes the one copy."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple:
        return bytes, (pickle.PickleBuffer(self.data),)


# ---- arrays


def _reduce_array(array: np.ndarray) -> tuple:
    dtype = array.dtype
    if dtype.kind not in "biufc" or dtype.isbuiltin == 2:  # 2: a type from outside NumPy
        return array.__reduce_ex__(5)
    code = dtype.char if dtype.isnative else dtype.str
    flags, order = array.flags, "C"
    if not flags.c_contiguous:
        if flags.f_contiguous:
            order = "F"
        else:
            array = array.copy(order)
    if array.nbytes < INLINE_BYTES:
        data: Any = array.tobytes(order)
    else:
        # pickle would carry a read-only flag over to memory that is the receiver's own.
        data = pickle.PickleBuffer(array if flags.writeable else _assume_writable(array))
    return _array, (data, array.shape, code, order)


def _array(data: Any, shape: tuple[int, ...], dtype: str, order: str) -> np.ndarray:
    if type(data) is bytes:
        data = bytearray(data)
    return np.ndarray(shape, dtype, data, order=order)


_Pickler.dispatch_table[np.ndarray] = _reduce_array


# ---- tensors


def _torch() -> Any:
    import torch

    return torch


@functools.cache
def _dtype_names() -> dict[Any, str]:
    """Name of each torch dtype that can travel as raw bytes."""
    torch = _torch()
    names = [*_NUMPY_DTYPES, *_CARRIERS]
    return {getattr(torch, name): name for name in names if hasattr(torch, name)}


def _reduce_tensor(tensor: torch.Tensor) -> tuple:
    torch = sys.modules["torch"]
    name = _dtype_names().get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return tensor.__reduce_ex__(5)
    flags = _PARAMETER if type(tensor) is torch.nn.Parameter else 0
    if tensor.requires_grad:
        flags |= _REQUIRES_GRAD if tensor.is_leaf else 0
    original = tensor
    if flags or tensor.requires_grad:
        tensor = tensor.detach()
    tokens = getattr(_hooks, "encode", None)
    if tokens is not None and (tokens.host or not tensor.is_cpu):
        token = tokens.get(original, tensor)
        if token is not None:
            return _device_tensor, (token, flags)
    if tensor.is_cpu:
        return _tensor, (_tensor_data(tensor, name), name, tuple(tensor.shape), flags)
    data = _tensor_data(tensor.cpu(), name)
    return _tensor, (data, name, tuple(tensor.shape), flags, tensor.device.type)


class _HookFailed(Exception):
    """Carries an exception of the device hook past the handling of pickle's own."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Tokens:
    """The tokens of one encode call: pickling a second time must not ask the hook again."""

    def __init__(self, hook: Callable[[torch.Tensor], Any], host: bool) -> None:
        self.hook = hook
        self.host = host
        self.by_id: dict[int, tuple[Any, torch.Tensor]] = {}

    def get(self, original: torch.Tensor, detached: torch.Tensor) -> Any:
        if id(original) not in self.by_id:
            try:
                token = self.hook(detached)
            except Exception as error:
                raise _HookFailed(error) from error
            # The tensor may be a temporary of some __getstate__: hold it so its id stays its own.
            self.by_id[id(original)] = token, original
        return self.by_id[id(original)][0]


def _tensor_data(tensor: torch.Tensor, name: str) -> bytes | pickle.PickleBuffer:
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if name in _CARRIERS:
        tensor = tensor.view(getattr(sys.modules["torch"], _CARRIERS[name]))
    array = tensor.numpy()
    return array.tobytes() if array.nbytes < INLINE_BYTES else pickle.PickleBuffer(array)


def _tensor(
    data: Any, name: str, shape: tuple[int, ...], flags: int, device: str = "cpu"
) -> torch.Tensor:
    torch = _torch()
    if type(data) is bytes:
        data = bytearray(data)
    elif data.readonly:
        data = _assume_writable(np.frombuffer(data, np.uint8))
    tensor = torch.from_numpy(np.ndarray(shape, _CARRIERS.get(name, name), data))
    if name in _CARRIERS:
        tensor = tensor.view(getattr(torch, name))
    if device != "cpu" and getattr(getattr(torch, device, None), "is_available", bool)():
        tensor = tensor.to(device)
    return _with_flags(tensor, flags) if flags else tensor


def _device_tensor(token: Any, flags: int) -> torch.Tensor:
    hook = getattr(_hooks, "decode", None)
    if hook is None:
        raise ValueError(
            "the message holds device tensors sent through a device_hook: decode needs one too"
        )
    return _with_flags(hook(token), flags)


def _with_flags(tensor: torch.Tensor, flags: int) -> torch.Tensor:
    requires_grad = bool(flags & _REQUIRES_GRAD)
    if flags & _PARAMETER:
        return _torch().nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


class _ArrayInterface:
    """Minimal owner of a NumPy array interface."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def _assume_writable(array: np.ndarray) -> np.ndarray:
    """Present read-only memory as writable: torch has no such flag and would warn instead."""
    interface = array.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_ArrayInterface(interface, array))


# ---- errors


def _locate(obj: Any) -> tuple[str, Any]:
    """Descend to the innermost part that cannot be pickled; only ever runs after a failure."""
    path, seen = "obj", {id(obj)}
    while True:
        for step, child in _children(obj):
            if id(child) not in seen and not _can_pickle(child):
                seen.add(id(child))
                path, obj = path + step, child
                break
        else:
            return path, obj


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        for key, value in obj.items():
            yield f"[{key!r:.80}]", value
            yield f".key({key!r:.80})", key
    elif isinstance(obj, tuple) and hasattr(obj, "_fields"):
        for name, value in zip(obj._fields, obj, strict=True):
            yield f".{name}", value
    elif isinstance(obj, (list, tuple)):
        for index, value in enumerate(obj):
            yield f"[{index}]", value
    elif isinstance(obj, (set, frozenset)):
        for value in obj:
            yield f".element({value!r:.80})", value
    elif not isinstance(obj, type) and not callable(obj):
        for name, value in getattr(obj, "__dict__", {}).items():
            yield f".{name}", value
        for cls in type(obj).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__") and hasattr(obj, name):
                    yield f".{name}", getattr(obj, name)


def _can_pickle(obj: Any) -> bool:
    try:
        _dump(_cloud_pickler(), obj)
    except Exception:
        return False
    return True
