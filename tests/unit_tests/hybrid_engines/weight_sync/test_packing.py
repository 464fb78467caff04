"""Tensors that travel as one arrive as they were, and what changed on the way is named."""

import pickle

import pytest
import torch

from rlinf.hybrid_engines.weight_sync.checksum import ROW_BYTES, checksum
from rlinf.hybrid_engines.weight_sync.packing import Buffer, layout_for, pack
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch, load_packed


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(3 * (1 << 16) + 5, generator=generator)
    return {
        "several rows": numbers,
        "odd": numbers[:7].bfloat16(),
        "matrix": numbers[:12].view(3, 4).T,
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "a whole row": numbers[: ROW_BYTES // 8].double(),
    }


def test_they_arrive_as_they_were() -> None:
    sent = tensors()
    packed = pack(sent, verify=True)
    assert packed.sums == tuple(checksum(tensor) for tensor in sent.values())
    assert packed.changed() == []
    own = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    load_packed(own, packed)
    for name, tensor in sent.items():
        assert torch.equal(own[name], tensor) and own[name].dtype == tensor.dtype


def test_floating_point_is_rounded_on_the_way_if_asked() -> None:
    sent = tensors()
    packed = pack(sent, verify=True, rounded_to=torch.bfloat16)
    wanted = {n: t.bfloat16() if t.is_floating_point() else t for n, t in sent.items()}
    assert packed.sums == tuple(checksum(tensor) for tensor in wanted.values())
    for name, tensor in packed.tensors().items():
        assert tensor.dtype == wanted[name].dtype and torch.equal(tensor, wanted[name])
    own = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    load_packed(own, packed)
    for name, tensor in own.items():
        assert torch.equal(tensor, wanted[name].to(tensor.dtype))


def test_a_target_of_another_format_is_cast() -> None:
    own = {"odd": torch.zeros(7, dtype=torch.float32), "scalar": torch.tensor(0)}
    load_packed(own, pack({name: tensors()[name] for name in own}, verify=True))
    assert torch.equal(own["odd"], tensors()["odd"].float()) and int(own["scalar"]) == 3


@pytest.mark.parametrize("name", ["several rows", "odd", "a whole row"])
def test_what_changed_is_named(name: str) -> None:
    packed = pack(tensors(), verify=True)
    packed.tensors()[name].flatten()[-1] += 1
    assert packed.changed() == [name]
    own = tensors()
    with pytest.raises(WeightMismatch, match=f"'{name}' arrived changed"):
        load_packed(own, packed)
    assert packed._replace(sums=None).changed() == []


def test_an_unknown_name_and_another_shape_are_refused() -> None:
    packed = pack({"odd": tensors()["odd"]}, verify=False)
    with pytest.raises(WeightMismatch, match="which this model does not have"):
        load_packed({}, packed)
    with pytest.raises(WeightMismatch, match=r"'odd' is \(7,\) at the actor and \(8,\) here"):
        load_packed({"odd": torch.zeros(8)}, packed)


def test_a_buffer_is_packed_again() -> None:
    first = tensors()
    second = {name: first[name] * 2 for name in ("a whole row", "odd", "several rows")}
    buffer = Buffer(torch.full((16 * ROW_BYTES,), 255, dtype=torch.uint8))
    for sent in (first, second, second, first):
        packed = buffer.pack(sent, layout_for(sent), verify=True)
        assert packed.flat.data_ptr() == buffer.flat.data_ptr()
        assert packed.flat.nbytes == packed.layout.nbytes < buffer.flat.nbytes
        assert packed.sums == tuple(checksum(tensor) for tensor in sent.values())
        for name, tensor in packed.tensors().items():
            assert torch.equal(tensor, sent[name]) and tensor.dtype == sent[name].dtype


def test_a_layout_is_read_once_on_either_side() -> None:
    layout = layout_for(tensors())
    assert layout_for(tensors()) is layout
    assert layout_for(tensors(), torch.float16) is not layout
    data = pickle.dumps(layout)
    arrived = pickle.loads(data)
    assert pickle.loads(data) is arrived and arrived.places == layout.places
    assert arrived.payload == sum(tensor.nbytes for tensor in tensors().values())
