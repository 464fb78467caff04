"""Builds a model without memory for its weights, and its weights one tensor at a time.

While a model is built, its parameters go to the meta device, and what would have been written into
them is written down. Replayed, that gives the values that the model would have had, bit for bit,
without the whole of them ever being there. Parameters can be read from files instead.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from rlinf.models.tensor_files import TensorSource
from rlinf.utils.shards import Rows, cut

_logger = logging.getLogger(__name__)

_OVERWRITES = {"normal_", "uniform_", "fill_", "zero_", "copy_", "log_normal_", "exponential_"}
"""Operations after which nothing is left of what a tensor held before."""
_SHAPES_ONLY = {"empty_like", "new_empty", "new_empty_strided", "new_zeros", "zeros_like"}
"""Operations that read no value of the tensor that they are given."""

_DRAWN = {
    torch.ops.aten.randn.default: torch.ops.aten.normal_.default,
    torch.ops.aten.rand.default: torch.ops.aten.uniform_.default,
}
"""Operations that make a tensor of random numbers, and those that fill one with the same."""

RowsOf = Callable[[str], Rows | None]
"""Which rows of the parameter of a name are wanted; None is all of it."""


class CannotDefer(Exception):
    """A model reads its weights while it is built, so that they have to be there."""


@dataclass(frozen=True)
class _Write:
    """One operation on a parameter.

    Attributes:
        key: of the parameter's memory.
        func: the operation, or a function that fills the target; None puts `value` in.
        target: what it is applied to: the parameter, or a view of it.
        args: further arguments.
        kwargs: likewise.
        result: what it returns, if that is a view.
        value: what the parameter was made of.
    """

    key: int
    func: Any
    target: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    result: Tensor | None = None
    value: Tensor | None = None

    @property
    def overwrites(self) -> bool:
        """Whether the whole parameter is new after it."""
        if self.func is None:
            return True
        whole = self.target.numel() * self.target.itemsize == _nbytes(self.target)
        return whole and (self._initialises or _name(self.func) in _OVERWRITES)

    @property
    def draws(self) -> bool:
        """Whether it takes random numbers."""
        return self.func is not None and (self._initialises or _draws(self.func))

    @property
    def _initialises(self) -> bool:
        """Whether it is a function that fills the target, and no operation."""
        return not hasattr(self.func, "_schema")


class DeferredWeights:
    """What fills the parameters of a model that was built without them."""

    def __init__(self) -> None:
        self._random = torch.get_rng_state()
        self._program: list[_Write] = []
        self._memory: dict[int, Tensor] = {}
        self._views: set[int] = set()
        """Ids of views that the program makes, and so keeps."""
        self._drawn: list[weakref.ref[Tensor]] = []
        """Random tensors without memory, as long as they are there: parameters take it over."""
        self._files: dict[int, tuple[TensorSource, str]] = {}
        self._later: dict[str, tuple[TensorSource, str]] = {}
        self._keys: dict[str, int] = {}

    # -- while a model is built -----------------------------------------------------------------

    def has(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a parameter without memory, or a view of one."""
        return _key(tensor) in self._memory

    def note(self, func: Any, target: Tensor, **further: Any) -> None:
        """Write down an operation on a parameter, or on a view of one; see `_Write`."""
        key = _key(target)
        if id(target) not in self._views:
            # Not what was given, which may be a parameter that is another one when it is filled.
            target = self._memory[key]
        write = _Write(key, func, target, **further)
        if write.result is not None:
            self._views.add(id(write.result))
        self._program.append(write)

    def draw(self, made: Tensor, func: Any) -> None:
        """Write down how a tensor without memory gets random numbers: a parameter may take it."""
        self._memory[_key(made)] = made.detach()
        self._drawn.append(weakref.ref(made))
        self.note(func, made)

    def read_from(self, model: nn.Module, source: TensorSource, names: Mapping[str, str]) -> None:
        """Read parameters from files; random numbers that they would have got are drawn anyway.

        Args:
            model: the model, or the part of it that is there so far.
            source: the files.
            names: names of tensors there, by names of parameters in the model.
        """
        own = dict(model.named_parameters(remove_duplicate=False))
        for name, there in names.items():
            self._files[_key(own[name])] = source, there

    def forget(self) -> None:
        """Forget all that was to be written so far, random numbers included."""
        self._program.clear()
        self._views.clear()

    def finish(self, model: nn.Module) -> None:
        """Learn the names of the parameters, when the model is built.

        Raises:
            CannotDefer: nothing says what is in a parameter, or something else has no memory.
        """
        if any(drawn() is not None for drawn in self._drawn):
            raise CannotDefer("a tensor of random numbers is no parameter")
        self._keys = {name: _key(p) for name, p in model.named_parameters(remove_duplicate=False)}
        written = {write.key for write in self._program} | self._files.keys()
        for name, key in self._keys.items():
            if key not in written:
                raise CannotDefer(f"nothing is written into {name}")
        model.__dict__[_ATTRIBUTE] = self

    # -- afterwards -------------------------------------------------------------------------------

    def replace(self, source: TensorSource, names: Mapping[str, str]) -> None:
        """Read parameters from somewhere else; random numbers are drawn all the same.

        Args:
            source: the files.
            names: names of tensors there, by names of parameters in the model; one that is tied
                has all of its names among them, or none.
        """
        self._later |= {name: (source, there) for name, there in names.items()}

    def sources(self) -> list[TensorSource]:
        """Return what parameters are read from."""
        found = [source for source, _ in (*self._files.values(), *self._later.values())]
        return list({id(source): source for source in found}.values())

    def parts(self, rows: RowsOf) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter, or the rows that are wanted of it, one after the other.

        One that has several names comes once, under the first. Whoever iterates copies a part
        before the next one comes. At most one parameter exists whole at a time, and none that is
        read from files.

        Args:
            rows: which rows are wanted.
        """
        first: dict[int, str] = {}
        for name, key in self._keys.items():
            first.setdefault(key, name)
        for key, (source, there) in self._files.items():
            if key in first and first[key] not in self._later:
                name = first[key]
                yield name, source.read(there, rows(name))
        drawn = {key for key, name in first.items() if name not in self._later}
        for key, tensor in self._replay(drawn - self._files.keys()):
            name = first[key]
            yield name, cut(tensor, rows(name))
        for name in first.values():
            if name in self._later:
                source, there = self._later[name]
                yield name, source.read(there, rows(name))

    def _replay(self, wanted: set[int]) -> Iterator[tuple[int, Tensor]]:
        """Do what was written down; yield the memory of each parameter when it is complete."""
        begin: dict[int, int] = {}
        end: dict[int, int] = {}
        for place, write in enumerate(self._program):
            end[write.key] = place
            if write.overwrites or write.key not in begin:
                begin[write.key] = place
        now = torch.get_rng_state()
        # Whoever has drawn since the model was built goes on from where it is.
        foreign = not torch.equal(now, self._random)
        state = self._random
        alive: dict[int, Tensor] = {}
        try:
            torch.set_rng_state(state)
            for place, write in enumerate(self._program):
                key = write.key
                if key in wanted and place >= begin[key]:
                    self._apply(write, alive)
                    if place == end[key]:
                        state = torch.get_rng_state()
                        whole = alive[id(self._memory[key])]
                        alive = {
                            number: tensor
                            for number, tensor in alive.items()
                            if not _shares(tensor, whole)
                        }
                        yield key, whole
                        del whole
                        torch.set_rng_state(state)
                elif write.draws:
                    scratch = torch.empty(write.target.shape, dtype=write.target.dtype)
                    write.func(scratch, *write.args, **write.kwargs)
            state = torch.get_rng_state()
        finally:
            torch.set_rng_state(now if foreign else state)

    def _apply(self, write: _Write, alive: dict[int, Tensor]) -> None:
        base = self._memory[write.key]
        if id(base) not in alive:
            alive[id(base)] = torch.empty(base.shape, dtype=base.dtype)
        if write.func is None:
            alive[id(base)].copy_(write.value)
            return
        target = alive.get(id(write.target), alive[id(base)])
        args, kwargs = tree_map_only(
            Tensor, lambda t: alive.get(id(t), t), (write.args, write.kwargs)
        )
        with torch.no_grad():
            result = write.func(target, *args, **kwargs)
        if write.result is not None:
            alive[id(write.result)] = result


_ATTRIBUTE = "_deferred_weights"
_one_at_a_time = threading.Lock()
_deferring: ContextVar[DeferredWeights | None] = ContextVar("deferring", default=None)


def take_deferred(model: nn.Module) -> DeferredWeights | None:
    """Take from a model what fills its parameters; None if it has them already."""
    return model.__dict__.pop(_ATTRIBUTE, None)


def deferred_of(model: nn.Module) -> DeferredWeights | None:
    """Return what fills the parameters of a model; None if it has them already."""
    return model.__dict__.get(_ATTRIBUTE)


def assign_parameters(model: nn.Module, values: Mapping[str, nn.Parameter]) -> None:
    """Give a model other parameters.

    Args:
        model: what they are part of; FSDP learns of them, too.
        values: by name; one that is tied goes by any of its names, and stays tied.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    new = {id(named[name]): value for name, value in values.items()}
    state = {name: new[id(old)] for name, old in named.items() if id(old) in new}
    model.load_state_dict(state, strict=False, assign=True)


def without_weights(build: Callable[[DeferredWeights | None], nn.Module]) -> nn.Module:
    """Build a model whose parameters are filled later, or the whole of it if it needs them at once.

    Args:
        build: makes the model; it may tell what it is given where weights come from, and has to
            load them itself where that is None.
    """
    random = torch.get_rng_state()
    try:
        with deferring() as deferral:
            model = build(deferral)
            deferral.finish(model)
        return model
    except CannotDefer as reason:
        _logger.warning("each rank builds the whole model before it is sharded: %s", reason)
        torch.set_rng_state(random)
        return build(None)


def initialise(target: Tensor, func: Callable[..., Any], **kwargs: Any) -> None:
    """Give a parameter, or a view of one, its values; if it has no memory yet, when it gets some.

    Args:
        target: what to fill.
        func: does it, called with the target; what it reads has to be in `kwargs`.
        **kwargs: further arguments.
    """
    weights = _deferring.get()
    if weights is not None and weights.has(target):
        weights.note(func, target, kwargs=kwargs)
        return
    with torch.no_grad():
        func(target, **kwargs)


@contextlib.contextmanager
def deferring() -> Iterator[DeferredWeights]:
    """Let modules that are made in this block have parameters without memory.

    Buffers are made as ever. `DeferredWeights.finish` has to follow.

    Raises:
        CannotDefer: something asks for the value of a parameter.
    """
    with _one_at_a_time:
        weights = DeferredWeights()
        recorder = _Recorder(weights)
        register, thread = nn.Module.register_parameter, threading.get_ident()

        def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            if parameter is not None and threading.get_ident() == thread:
                parameter = recorder.without_memory(parameter)
            register(module, name, parameter)

        nn.Module.register_parameter = without_memory
        token = _deferring.set(weights)
        try:
            with recorder, _Watch(weights):
                yield weights
        finally:
            _deferring.reset(token)
            nn.Module.register_parameter = register


class _Watch(TorchFunctionMode):
    """Notes calls of functions of `torch.nn.init` that leave alone what has no memory."""

    def __init__(self, weights: DeferredWeights) -> None:
        super().__init__()
        self._weights = weights

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func == Tensor.is_meta.__get__ and self._weights.has(args[0]):
            asking = sys._getframe(1)
            if asking.f_globals.get("__name__") == nn.init.__name__:
                self._note(asking, args[0])
        return func(*args, **(kwargs or {}))

    def _note(self, asking: FrameType, target: Tensor) -> None:
        """Write down a call as a whole: it will return at once, and needs the values it draws."""
        code = asking.f_code
        names = code.co_varnames[: code.co_argcount]
        _, *others = (asking.f_locals[name] for name in names)
        given = dict(zip(names[1:], others, strict=True))
        if given.get("generator") is not None:
            raise CannotDefer(f"{code.co_name} draws from a generator of its own")
        self._weights.note(asking.f_globals[code.co_name], target, kwargs=given)


class _Recorder(TorchDispatchMode):
    """Sees each operation on tensors, and notes those on parameters without memory."""

    def __init__(self, weights: DeferredWeights) -> None:
        super().__init__()
        self._weights = weights
        self._made = WeakTensorKeyDictionary()
        self._unwritten: set[int] = set()
        """Memory that nothing has been written to."""
        self._left: set[int] = set()
        """Memory of parameters from before they lost it."""

    def without_memory(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter that a module gets instead of one with memory."""
        if parameter.is_meta:
            return parameter
        if parameter in self._made:
            return self._made[parameter]
        if type(parameter) is not nn.Parameter:
            raise CannotDefer(f"a parameter is a {type(parameter).__name__}")
        empty = torch.empty_like(parameter, device="meta", memory_format=torch.contiguous_format)
        made = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        self._made[parameter] = made
        # Not the parameter itself, which may be given another number format before it is filled.
        base = self._weights._memory[_key(made)] = made.detach()
        if _key(parameter) not in self._unwritten:
            value = parameter.detach().clone()
            self._weights._program.append(_Write(_key(made), None, base, value=value))
        self._left.add(_key(parameter))
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWN:
            return self._draw_later(func, args, kwargs)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        keys = {_key(t) for t in given}
        ours = keys & self._weights._memory.keys()
        if ours:
            self._require_known(func, len(ours))
        out = func(*args, **kwargs)
        if ours:
            self._note(func, args, kwargs, out, next(iter(ours)))
        else:
            self._follow(func, keys, out)
        return out

    def _draw_later(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return a tensor without memory, for a parameter, and note what numbers it gets."""
        if torch.device(kwargs.get("device") or "cpu").type != "cpu":
            return func(*args, **kwargs)
        made = func(*args, **kwargs | {"device": torch.device("meta")})
        self._weights.draw(made, _DRAWN[func])
        return made

    def _require_known(self, func: Any, parameters: int) -> None:
        """Refuse operations that need a value, or more than one parameter."""
        if _name(func) in _SHAPES_ONLY:
            return
        if parameters > 1 or not (func.is_view or func._schema.is_mutable):
            raise CannotDefer(f"{func} reads a parameter")

    def _note(self, func: Any, args: tuple, kwargs: dict, out: Any, key: int) -> None:
        if _name(func) in _SHAPES_ONLY:
            return
        target, *rest = args
        if _key(target) != key:
            raise CannotDefer(f"{func} copies a parameter into something else")
        if any(isinstance(t, Tensor) and t.is_meta for t in tree_leaves((rest, kwargs))):
            raise CannotDefer(f"{func} copies a parameter into another one")
        saved = tree_map_only(Tensor, lambda t: t.detach().clone(), tuple(rest))
        result = out if func.is_view and isinstance(out, Tensor) else None
        if func.is_view and result is None:
            raise CannotDefer(f"{func} returns several views of a parameter")
        self._weights.note(func, target, args=saved, kwargs=dict(kwargs), result=result)

    def _follow(self, func: Any, keys: set[int], out: Any) -> None:
        """Keep track of memory that nothing has been written to."""
        if _draws(func):
            # It would be drawn before what was written down, and not after it.
            raise CannotDefer(f"{func} draws random numbers for something else than a parameter")
        if func._schema.is_mutable:
            self._unwritten -= keys
            if keys & self._left:
                raise CannotDefer(f"{func} writes a parameter that a module has already got")
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _key(tensor) not in keys:
                self._left.discard(_key(tensor))
                if func is torch.ops.aten.empty.memory_format:
                    self._unwritten.add(_key(tensor))
                else:
                    self._unwritten.discard(_key(tensor))


def _name(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _nbytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _shares(one: Tensor, other: Tensor) -> bool:
    return _key(one) == _key(other)
