"""The Triton kernel of checksums beside plain torch: on a GPU, or by Triton's interpreter."""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when Triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"

from rlinf.hybrid_engines.weight_sync.checksum_kernel import row_sums


def test_sums_wrap_around_as_those_of_torch_do():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    g = torch.Generator().manual_seed(0)
    rows = torch.randint(-(2**31), 2**31, (3, 8192), generator=g, dtype=torch.int64)
    rows = rows.to(torch.int32).to(device)
    weights = torch.randint(-(2**62), 2**62, (8192,), generator=g).to(device) * 2 + 1
    assert torch.equal(row_sums(rows, weights), (rows * weights).sum(1))
