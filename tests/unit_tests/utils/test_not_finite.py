"""Numbers that are not finite are found in tensors of any format."""

import math

import pytest
import torch

from rlinf.utils.not_finite import first_not_finite, is_finite

FORMATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_one_bad_number_is_found(dtype, number):
    tensor = torch.ones(3, 4, 5, dtype=dtype)
    assert is_finite(tensor)
    tensor[1, 2, 3] = number
    assert not is_finite(tensor) and not is_finite(tensor.transpose(0, 2))
    index, found = first_not_finite(tensor)
    assert index == [1, 2, 3] and (found == number or math.isnan(number) and math.isnan(found))


@pytest.mark.parametrize("dtype", FORMATS)
def test_great_numbers_are_finite_though_their_sum_is_not(dtype):
    assert is_finite(torch.full((100,), torch.finfo(dtype).max, dtype=dtype))


def test_infinities_that_cancel_are_found():
    assert not is_finite(torch.tensor([math.inf, -math.inf]))


def test_whole_numbers_are_finite():
    assert is_finite(torch.tensor([1, 2])) and is_finite(torch.zeros(0))
