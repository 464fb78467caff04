"""Checksums see what happened to a tensor, and are the same wherever it is."""

import numpy as np
import pytest
import torch

from rlinf.hybrid_engines.weight_sync.checksum import (
    checksum,
    checksums_of_rows,
    share_of_checksum,
)
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch, load_tensor

MANY = 3 * (1 << 16) + 5
"""Words of a tensor of three whole rows and a short one."""
MASK = (1 << 64) - 1


def mixed(number):
    """SplitMix64's finaliser, made odd."""
    z = (number * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) | 1


def slow(tensor):
    """The definition, word by word."""
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 4), np.int32).tolist()
    row = 1 << 16
    total = sum(mixed(i % row + 1) * mixed(row + i // row + 1) * x for i, x in enumerate(words))
    return (total + len(data)) % (1 << 64)


def samples():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(MANY, generator=generator)
    return {
        "float32": numbers[:100].view(4, 25),
        "bfloat16, an odd number": numbers[:7].bfloat16(),
        "float64": numbers[:9].double(),
        "bool": numbers[:5] > 0,
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "transposed": numbers[:12].view(3, 4).T,
        "a slice that starts inside a word": numbers[:9].bfloat16()[1:],
        "several rows": numbers,
    }


@pytest.mark.parametrize("name", samples())
def test_it_is_the_sum_of_weighted_words(name):
    tensor = samples()[name]
    assert checksum(tensor) == slow(tensor)


@pytest.mark.parametrize("name", [n for n in samples() if n not in ("scalar", "several rows")])
def test_rows_have_the_checksums_that_they_have_alone(name):
    tensor = samples()[name]
    for rows in (tensor, tensor[1:], tensor[:, None] if len(tensor) else tensor):
        each = [checksum(row) for row in rows]
        assert [number % (1 << 64) for number in checksums_of_rows(rows).tolist()] == each


def test_rows_may_be_longer_than_the_weights_of_a_row():
    tensor = samples()["several rows"].repeat(2).view(2, MANY)
    each = [number % (1 << 64) for number in checksums_of_rows(tensor).tolist()]
    assert each == [slow(tensor[0])] * 2


@pytest.mark.parametrize("parts", [1, 2, 3, 70_000])
def test_shares_of_the_parts_add_up_to_the_checksum_of_the_whole(parts):
    tensor = samples()["several rows"]
    size = -(-len(tensor) // parts)
    pieces = list(tensor.split(size))[:4] + [tensor[4 * size :]]
    total, first = tensor.nbytes, 0
    for piece in pieces:
        total += int(share_of_checksum(piece, first))
        first += len(piece)
    assert first == len(tensor) and total % (1 << 64) == checksum(tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_as_a_cpu():
    for name, tensor in samples().items():
        assert checksum(tensor.cuda()) == checksum(tensor), name


@pytest.mark.parametrize("count", [6, MANY])
def test_every_change_shows(count):
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(1))
    before = checksum(tensor)
    assert checksum(tensor.clone()) == before
    changed = []
    for place in (0, 1, count // 2, count - 1):
        one = tensor.clone()
        one[place] = -one[place]
        changed.append(one)
        bits = tensor.clone()
        bits.view(torch.int32)[place] ^= 1
        changed.append(bits)
    opposite = tensor.clone()
    opposite[1] = -opposite[0]
    swapped = opposite.clone()
    swapped[:2] = opposite[:2].flip(0)
    assert checksum(swapped) != checksum(opposite)
    changed += [tensor.flip(0), tensor.roll(1), tensor[:-1], torch.cat([tensor, torch.zeros(1)])]
    if count > 1 << 16:
        changed.append(tensor.roll(1 << 16))
    sums = [checksum(each) for each in changed]
    assert len({before, *sums}) == 1 + len(sums)


def test_the_same_numbers_in_another_format_have_another_checksum():
    tensor = torch.arange(4)
    assert checksum(tensor) != checksum(tensor.float())


def test_swapped_tensors_are_named():
    one, other = torch.ones(3), torch.zeros(3)
    own = {"first": torch.empty(3), "second": torch.empty(3)}
    load_tensor(own, "first", one, checksum(one))
    with pytest.raises(WeightMismatch, match="'second' arrived changed"):
        load_tensor(own, "second", one, checksum(other))


def test_weights_that_are_cast_on_arrival_are_checked_too():
    sent = torch.randn(5)
    own = {"layer": torch.zeros(5, dtype=torch.bfloat16)}
    load_tensor(own, "layer", sent, checksum(sent))
    assert torch.equal(own["layer"], sent.bfloat16())
    with pytest.raises(WeightMismatch, match="'layer' arrived changed"):
        load_tensor(own, "layer", sent + 1, checksum(sent))
