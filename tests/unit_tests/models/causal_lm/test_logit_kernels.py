"""The kernels of Triton say what torch says; run by Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys

import pytest
import torch

from rlinf.models.causal_lm import logit_kernels

PROGRAM = """
import torch
from rlinf.models.causal_lm.logit_kernels import LogitKernels

kernels = LogitKernels()
kernels.check(torch.device("cpu"))
rows = torch.randn(2, 50)
found = kernels.log_sums(rows)
assert torch.allclose(found, rows.logsumexp(-1)), found
weights, targets = torch.tensor([1.0, -0.5]), torch.tensor([3, 49])
grad = kernels.gradients(rows, found, targets, weights, torch.bfloat16)
assert grad.dtype is torch.bfloat16 and abs(float(grad.float().sum())) < 0.02
assert kernels.log_sums(rows[:0]).shape == (0,)
print("agree")
"""


def test_the_programs_agree_with_torch() -> None:
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "agree" in done.stdout, done.stderr


def test_without_a_gpu_torch_does_it() -> None:
    assert logit_kernels.kernels_for(torch.zeros(2, 3)) is None


def test_kernels_that_are_wrong_are_not_used(monkeypatch, caplog) -> None:
    class Wrong(logit_kernels.LogitKernels):
        def __init__(self) -> None:
            pass

        def log_sums(self, logits):
            return logits.sum(-1)

        def gradients(self, logits, *_):
            return logits

    monkeypatch.setattr(logit_kernels, "LogitKernels", Wrong)
    logit_kernels._kernels_on.cache_clear()
    assert logit_kernels._kernels_on(torch.device("cpu")) is None
    assert "not those of torch" in caplog.text
    logit_kernels._kernels_on.cache_clear()
