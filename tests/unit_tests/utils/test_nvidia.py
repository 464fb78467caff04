"""GPUs as NVML lists them, against a small stand-in for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pynvml
import pytest

from rlinf.utils import nvidia
from rlinf.utils.nvidia import NvidiaDriverError, NvidiaGpu, list_gpus


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """A driver with two GPUs; tests replace what should not work."""
    monkeypatch.setattr(nvidia, "_DRIVER_FILES", (str(tmp_path),))
    shut = []
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: shut.append(1),
        "nvmlSystemGetDriverVersion": lambda: b"580.65.06",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
        "nvmlDeviceGetName": lambda gpu: b"NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=1 << 30),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return shut


def test_all_gpus_are_listed(driver):
    assert list_gpus() == [
        NvidiaGpu(i, f"GPU-{i}", "NVIDIA H200", 1 << 30, "580.65.06") for i in range(2)
    ]
    assert driver == [1]


def test_a_machine_without_a_driver_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(nvidia, "_DRIVER_FILES", (str(tmp_path / "no"),))
    assert list_gpus() == []


def test_devices_without_the_library_are_none(driver, monkeypatch):
    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert list_gpus() == [] and driver == []


def test_a_driver_that_fails_is_told(driver, monkeypatch):
    def fail(index):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", fail)
    with pytest.raises(NvidiaDriverError, match="GPU is lost"):
        list_gpus()
    assert driver == [1]


def test_a_driver_that_hangs_is_told(driver, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(pynvml, "nvmlInit", answer.wait)
    with pytest.raises(NvidiaDriverError, match="within 0.2 s"):
        list_gpus(timeout=0.2)
    answer.set()
