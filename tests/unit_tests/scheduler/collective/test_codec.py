"""The codec: whatever goes in comes out equal, large buffers without a copy."""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import enum
import importlib.util
import pathlib
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlinf.scheduler.collective import codec
from rlinf.scheduler.collective.codec import INLINE_BYTES, decode, encode

torch = pytest.importorskip("torch")

LARGE = INLINE_BYTES  # elements: always more bytes than the limit
DTYPES = [
    getattr(torch, name)
    for name in [*codec._NUMPY_DTYPES, *codec._CARRIERS]
    if hasattr(torch, name) and name != "float4_e2m1fn_x2"
]


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    obs: Any
    info: Any


class Colour(enum.Enum):
    RED = 1


def same(a: Any, b: Any) -> bool:
    """Equality of type, dtype, shape and bits, through nests."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
            return False
        plain = [t.detach().resolve_conj().resolve_neg().flatten() for t in (a, b)]
        raw = [t.clone(memory_format=torch.contiguous_format) for t in plain]
        return a.numel() == 0 or torch.equal(*(t.view(torch.uint8) for t in raw))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return same(vars(a), vars(b))
    return a == b or a != a


def roundtrip(obj: Any) -> Any:
    """Through buffers that, like those of a transport, are not the sender's memory."""
    header, buffers = encode(obj)
    return decode(bytes(header), [bytearray(b) for b in buffers])


def random_tensor(dtype: Any, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    count = int(np.prod(shape, dtype=int))
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool:
        data = np.random.default_rng(seed).integers(0, 2, count, np.uint8)
    else:
        data = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def rearrange(tensor: Any, how: str) -> Any:
    if how == "transposed":
        return tensor.T if tensor.ndim == 2 else tensor
    if how == "strided":
        return tensor[..., ::2] if tensor.ndim else tensor
    if how == "expanded":
        return tensor.expand(3, *tensor.shape)
    return tensor


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple) | st.just((40, 41)) | st.just((9000,))
seeds = st.integers(0, 2**32 - 1)
tensors = st.builds(
    lambda dtype, shape, seed, how: rearrange(random_tensor(dtype, shape, seed), how),
    st.sampled_from(DTYPES),
    shapes,
    seeds,
    st.sampled_from(["plain", "transposed", "strided", "expanded"]),
)


def random_array(dtype: str, shape: tuple[int, ...], seed: int, how: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    array = np.asarray(rng.integers(0, 100, shape)).astype(dtype)
    if how == "fortran":
        return np.asfortranarray(array).reshape(array.shape, order="F")
    if how == "readonly":
        array.flags.writeable = False
        return array
    return array[..., ::2] if how == "strided" and array.ndim else array


arrays = st.builds(
    random_array,
    st.sampled_from(["?", "u1", "i8", "f2", "f8", "c16", ">f4", "U3", "S2", "M8[s]", "O", "g"]),
    shapes,
    seeds,
    st.sampled_from(["plain", "fortran", "strided", "readonly"]),
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
leaves = plain | st.just(Colour.RED) | tensors | arrays
nests = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.builds(Point, inner, inner)
        | st.builds(Sample, inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests)
def test_any_nest_arrives_equal(obj: Any) -> None:
    assert same(roundtrip(obj), obj)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(tensors | arrays, max_size=6), st.booleans())
def test_views_are_on_the_given_buffers(leaves: list[Any], writable: bool) -> None:
    header, buffers = encode(leaves)
    assert all(b.nbytes >= INLINE_BYTES and b.contiguous for b in buffers)
    given = [bytearray(b) if writable else bytes(b) for b in buffers]
    where = [(np.frombuffer(b, np.uint8).ctypes.data, len(b)) for b in given]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="ComplexHalf")
        out = decode(header, given)
    for leaf in out:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufc":
            continue
        nbytes = leaf.nbytes
        address = leaf.data_ptr() if isinstance(leaf, torch.Tensor) else leaf.ctypes.data
        inside = any(a <= address < a + n for a, n in where)
        assert inside == (nbytes >= INLINE_BYTES)
        if isinstance(leaf, np.ndarray):
            assert leaf.flags.writeable == (writable or not inside)
            assert leaf.flags.aligned


def test_contiguous_data_is_not_copied() -> None:
    tensor, array = torch.zeros(LARGE), np.zeros((64, LARGE), order="F")
    _, buffers = encode({"t": tensor, "a": array, "b": tensor.bfloat16()})
    tensor[0] = 7.0
    array[3, 0] = 9.0
    assert np.frombuffer(buffers[0], np.float32)[0] == 7.0
    assert np.frombuffer(buffers[1], np.float64)[3] == 9.0


def test_small_tensors_travel_as_one() -> None:
    message = encode([torch.randn(16) for _ in range(100)])
    assert message.buffers == []
    out = decode(message.header)
    out[0].add_(1)  # each is its own memory
    assert message.nbytes == len(message.header) < 100 * 120


def test_a_part_of_a_large_storage_sends_only_itself() -> None:
    row = torch.zeros(1000, LARGE)[3]
    assert encode(row).nbytes < row.nbytes + 200


def test_gradients_and_parameters() -> None:
    leaf = torch.randn(3, requires_grad=True)
    inner = leaf * 2
    weight = torch.nn.Parameter(torch.randn(LARGE))
    frozen = torch.nn.Parameter(torch.arange(3), requires_grad=False)
    sent = [leaf, inner, weight, frozen]
    out = roundtrip(sent)
    assert [t.requires_grad for t in out] == [True, False, True, False]
    assert [type(t) for t in out] == [torch.Tensor, torch.Tensor, *[torch.nn.Parameter] * 2]
    assert all(t.is_leaf and torch.equal(t, s) for t, s in zip(out, sent, strict=True))


def test_conjugate_and_negative_views() -> None:
    z = torch.randn(LARGE, dtype=torch.complex64)
    for tensor in (z.conj(), z.conj().imag, z[:4].conj()):
        assert torch.equal(roundtrip(tensor), tensor)


def test_packed_float4() -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4")
    tensor = torch.arange(9000).to(torch.uint8).view(torch.float4_e2m1fn_x2)
    out = roundtrip(tensor)
    assert out.dtype == tensor.dtype
    assert torch.equal(out.view(torch.uint8), tensor.view(torch.uint8))


class Tagged(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore")
def test_other_tensors_use_torch_pickling() -> None:
    eye = torch.eye(4)
    sparse = roundtrip(eye.to_sparse())
    assert sparse.is_sparse and torch.equal(sparse.to_dense(), eye)
    assert torch.equal(roundtrip(eye.to_sparse_csr()).to_dense(), eye)
    quantised = torch.quantize_per_tensor(eye, 0.5, 0, torch.qint8)
    assert torch.equal(roundtrip(quantised).dequantize(), eye)
    tagged = roundtrip(eye.as_subclass(Tagged))
    assert type(tagged) is Tagged and torch.equal(tagged.as_subclass(torch.Tensor), eye)
    assert roundtrip(torch.empty(3, 4, device="meta")).is_meta


def test_torch_odds_and_ends() -> None:
    obj = [torch.Size([2, 3]), torch.float8_e4m3fn, torch.device("cpu")]
    assert roundtrip(obj) == obj
    module = roundtrip(torch.nn.Linear(80, 80))
    assert isinstance(module.weight, torch.nn.Parameter) and module.weight.requires_grad


def test_identity_within_a_message_is_kept() -> None:
    tensor, shared = torch.randn(LARGE), [1]
    out = roundtrip({"a": tensor, "b": tensor, "c": shared, "d": shared})
    assert out["a"] is out["b"] and out["c"] is out["d"]


def test_large_bytes_leave_the_header() -> None:
    data = bytes(range(256)) * 64
    message = encode(data)
    assert len(message.header) < 200 and len(message.buffers) == 1
    assert roundtrip(data) == data and type(roundtrip(data)) is bytes


def test_other_containers_and_arrays() -> None:
    record = np.zeros(600, [("a", "f4"), ("b", "i8")])
    obj = [
        collections.OrderedDict(a=1),
        collections.defaultdict(list, {"k": [np.arange(3)]}),
        {1, 2},
        range(4),
        np.float32(3),
        Colour,
        ValueError("x"),
        bytearray(b"abc"),
    ]
    out = roundtrip(obj)
    assert str(out) == str(obj)
    assert same(roundtrip(record), record)
    masked = np.ma.masked_array(np.arange(4), [0, 1, 0, 0])
    assert str(roundtrip(masked)) == str(masked)


def test_omegaconf() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    conf = omegaconf.OmegaConf.create({"a": {"b": [1, 2]}, "c": "${a.b[0]}"})
    out = roundtrip({"conf": conf, "t": torch.ones(2)})
    assert out["conf"] == conf and out["conf"].c == 1


class Registered:
    def __init__(self, value: int) -> None:
        self.value = value


def test_copyreg_is_honoured() -> None:
    copyreg.pickle(Registered, lambda r: (Registered, (r.value + 1,)))
    try:
        assert roundtrip([Registered(1)])[0].value == 2
    finally:
        del copyreg.dispatch_table[Registered]


def test_lambdas_and_local_classes() -> None:
    class Local:
        x = 5

    out = roundtrip({"f": lambda v: v + 1, "c": Local, "o": Local(), "t": torch.arange(LARGE)})
    assert out["f"](1) == 2 and out["c"].x == 5 and out["o"].x == 5
    assert torch.equal(out["t"], torch.arange(LARGE))
    assert len(encode({"f": lambda: 0, "t": torch.arange(LARGE)}).buffers) == 1


def test_classes_of_a_script_arrive_elsewhere(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import dataclasses, sys
            from rlinf.scheduler.collective.codec import encode

            @dataclasses.dataclass
            class OnlyHere:
                value: int

            sys.stdout.buffer.write(encode([OnlyHere(3)]).header)
            """
        )
    )
    root = pathlib.Path(codec.__file__).parents[3]
    header = subprocess.run(
        [sys.executable, str(script)],
        check=True,
        capture_output=True,
        env={"PYTHONPATH": str(root)},
        timeout=60,
    ).stdout
    assert decode(header)[0].value == 3


def test_torch_stays_out_of_processes_without_it() -> None:
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("codec_alone", {codec.__file__!r})
module = importlib.util.module_from_spec(spec)
sys.modules["codec_alone"] = module
spec.loader.exec_module(module)
import numpy as np
obj = {{"a": np.arange(10000), "b": np.arange(3), "c": [1, "x", b"y"]}}
header, buffers = module.encode(obj)
assert len(buffers) == 1
assert (module.decode(header, buffers)["a"] == obj["a"]).all()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert importlib.util.find_spec("torch")


class Slotted:
    __slots__ = ("inner",)


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda lock: lock, "obj"),
        (lambda lock: {"a": [0, 1, Sample(1, lock)]}, "obj['a'][2].info"),
        (lambda lock: Point((1, lock), 2), "obj.x[1]"),
        (lambda lock: [{lock: 1}], "obj[0].key("),
        (lambda lock: {frozenset([lock])}, ".element("),
    ],
)
def test_errors_name_the_place(build: Any, path: str) -> None:
    obj = build(threading.Lock())
    with pytest.raises(TypeError, match="lock") as info:
        encode(obj)
    assert path in str(info.value)


def test_errors_in_slots_and_cycles() -> None:
    slotted = Slotted()
    slotted.inner = {"self": slotted, "lock": threading.Lock()}
    with pytest.raises(TypeError) as info:
        encode([slotted])
    assert "obj[0].inner['lock']" in str(info.value)


class FakeCuda:
    """As much of a CUDA tensor as the codec looks at."""

    is_cpu = is_nested = is_meta = requires_grad = False
    layout, device = torch.strided, torch.device("cuda", 1)

    def __init__(self, host: torch.Tensor) -> None:
        self.host, self.dtype, self.shape = host, host.dtype, host.shape

    def cpu(self) -> torch.Tensor:
        return self.host


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for pickler in (codec._Pickler, codec._cloud_pickler()):
        monkeypatch.setitem(pickler.dispatch_table, FakeCuda, codec._reduce_tensor)


def test_device_hook_carries_device_tensors(fake_cuda: None) -> None:
    store: list[FakeCuda] = []

    def export(tensor: FakeCuda) -> int:
        store.append(tensor)
        return len(store) - 1

    one, two = FakeCuda(torch.randn(5)), FakeCuda(torch.randn(LARGE))
    # The lambda makes plain pickling fail half-way: the hook must not be asked again.
    message = encode([one, two, one, lambda: 0, torch.ones(2)], device_hook=export)
    assert store == [one, two] and message.buffers == []
    out = decode(*message, device_hook=lambda token: store[token].host)
    assert out[0] is out[2] and out[0] is one.host and out[1] is two.host
    with pytest.raises(ValueError, match="device_hook"):
        decode(*message)


def test_device_tensors_without_hook_are_staged(fake_cuda: None) -> None:
    tensor = FakeCuda(torch.randn(LARGE))
    for hook in (None, lambda _: None):
        header, buffers = encode({"t": tensor}, device_hook=hook)
        out = decode(header, buffers)["t"]
        assert out.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        assert torch.equal(out.cpu(), tensor.host)


def test_errors_of_the_hook_pass_through(fake_cuda: None) -> None:
    def fail(_: Any) -> None:
        raise ConnectionError("driver")

    with pytest.raises(ConnectionError, match="driver"):
        encode([FakeCuda(torch.ones(1))], device_hook=fail)
    assert getattr(codec._hooks, "encode", None) is None


def test_run_time_classes_are_not_kept() -> None:
    encode([type("Local", (), {})()])
    before = len(codec._Pickler.dispatch_table)
    encode([type("Local", (), {})()])
    assert len(codec._Pickler.dispatch_table) == before


def test_header_may_be_a_view() -> None:
    message = encode({"a": 1})
    assert decode(memoryview(bytearray(message.header))) == {"a": 1}
    assert pickle.loads(pickle.dumps(message.header)) == message.header
