"""Which kernels and which cache an engine chooses, and what it does when they fail."""

import importlib.util
import logging
from types import SimpleNamespace

import pytest
import torch

from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams
from rlinf.hybrid_engines.generation.hf import build
from rlinf.hybrid_engines.generation.hf.block_cache import BlockCache
from rlinf.hybrid_engines.generation.hf.build import Paging
from rlinf.hybrid_engines.generation.hf.device_block_cache import DeviceBlockCache
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.hybrid_engines.generation.hf.flash_cache import FlashCache
from rlinf.hybrid_engines.generation.hf.lean import LeanModel
from rlinf.hybrid_engines.generation.hf.triton_model import TritonModel
from rlinf.hybrid_engines.generation.settings import EngineSettings
from tests.unit_tests.hybrid_engines.generation.tiny import tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
REQUEST = GenerationRequest("x", [3, 4, 5], SamplingParams(6, temperature=0.0, ignore_eos=True), 2)


@pytest.fixture
def device(monkeypatch):
    """Pretend that there is a GPU, with Triton or without."""

    def make(capability=(9, 0), triton=True):
        found = importlib.util.find_spec
        there = SimpleNamespace() if triton else None
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(FlashCache, "why_not", staticmethod(lambda *_: None))
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest: there if name == "triton" else found(name, *rest),
        )

    return make


@pytest.mark.parametrize(
    ("machine", "where", "dtype", "kernels", "path", "paged"),
    [
        ({}, CUDA, torch.bfloat16, "auto", "triton", True),
        ({}, CUDA, torch.float16, "auto", "triton", True),
        ({}, CUDA, torch.bfloat16, "triton", "triton", True),
        ({}, CUDA, torch.bfloat16, "flash", "flash", False),
        ({}, CUDA, torch.bfloat16, "transformers", "transformers", False),
        ({"triton": False}, CUDA, torch.bfloat16, "auto", "flash", False),
        ({"capability": (7, 5)}, CUDA, torch.bfloat16, "auto", "flash", False),
        ({}, CPU, torch.float32, "auto", "torch", False),
    ],
)
def test_auto_is_paged_where_the_triton_kernels_run(
    device, machine, where, dtype, kernels, path, paged
):
    device(**machine)
    found = build._path(tiny("qwen3"), where, dtype, kernels)
    assert found == path
    assert Paging("auto").resolved(found, where).paged is paged
    assert Paging(False).resolved(found, where).paged is False


@pytest.mark.parametrize(
    ("path", "where"), [("flash", CUDA), ("torch", CUDA), ("transformers", CUDA)]
)
def test_true_is_an_error_where_there_is_no_paged_cache(path, where):
    with pytest.raises(ValueError, match=f"{path} on cuda has not; set it to auto or false"):
        Paging(True).resolved(path, where)


def test_true_is_paged_on_a_cpu_and_by_triton():
    assert Paging(True).resolved("torch", CPU).paged is True
    assert Paging(True, 640, False).resolved("triton", CUDA) == Paging(True, 640, False)


def test_tokens_without_blocks_are_an_error():
    assert Paging("auto", 640).resolved("triton", CUDA) == Paging(True, 640)
    with pytest.raises(ValueError, match="is auto, which is off for the path torch on cpu; set"):
        Paging("auto", 640).resolved("torch", CPU)
    with pytest.raises(ValueError, match="is 640: .*paged_cache is false; set it to true"):
        Paging(False, 640).resolved("triton", CUDA)


def test_settings_without_the_key_are_auto_and_contiguous_on_a_cpu():
    settings = EngineSettings(max_length=32, model=tiny(), max_running=4, device="cpu")
    running = HFEngine.from_settings(settings)
    # Rows have their memory at once, blocks would not.
    assert running.stats()["cache_bytes"] == 4 * running._decoder.bytes_per_row()
    assert not isinstance(running._decoder._cache, BlockCache)


class Compiler(RuntimeError):
    """What a compiler of kernels says."""


@pytest.fixture
def broken(monkeypatch):
    """Choose the path triton on a CPU, where some of its kernels fail."""

    def make(rows=True):
        def fail(self, *_):
            raise Compiler("no such instruction")

        monkeypatch.setattr(build, "_path", lambda *_: "triton")
        monkeypatch.setattr(DeviceBlockCache, "allocate", fail)
        monkeypatch.setattr(TritonModel, "decode", fail if rows else LeanModel.decode)

    return make


def running(**keys):
    return HFEngine(tiny("qwen3"), max_length=32, max_running=4, device="cpu", **keys)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("rows", [True, False])
def test_kernels_that_fail_are_one_warning_and_contiguous_rows(broken, caplog, rows):
    expected = running().generate([REQUEST])
    broken(rows)
    engine = running()
    assert engine.path == ("torch" if rows else "triton")
    assert engine.stats()["cache_bytes"] == 4 * engine._decoder.bytes_per_row()
    (warning,) = warnings(caplog)
    used = f"generation uses {engine.path} with contiguous rows"
    assert warning.startswith(f"{used}, since triton with a paged cache fails: no such")
    assert ("triton with contiguous rows fails" in warning) == rows
    found = engine.generate([REQUEST])
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]


@pytest.mark.parametrize(
    "keys", [{"paged": True}, {"kernels": "triton"}, {"kernels": "triton", "paged": False}]
)
def test_kernels_that_were_asked_for_and_fail_are_an_error(broken, keys):
    broken()
    with pytest.raises(Compiler, match="no such instruction"):
        running(**keys)


def test_too_few_tokens_are_an_error_and_no_reason_for_rows(broken):
    broken()
    with pytest.raises(ValueError, match="max_cache_tokens is 16: a sequence of"):
        running(max_cache_tokens=16)
