from __future__ import annotations

import errno
import json
import resource
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf.cli import doctor, main
from rlinf.cli.health import Finding, hardware, packages, processes, python_env, rendering
from rlinf.utils.nvidia import NvidiaDriverError, NvidiaGpu

GIB = 2**30


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9, 18), "fail"), ((3, 10, 0), "ok"), ((3, 12, 4), "ok"), ((3, 13, 0), "fail")],
)
def test_python(version: tuple[int, ...], status: str) -> None:
    finding = python_env.check_python(version)
    assert finding.status == status
    assert bool(finding.fix) == (status == "fail")


def test_another_environment_is_active(tmp_path: Path) -> None:
    finding = python_env.check_environment("/a", "/usr", {"VIRTUAL_ENV": str(tmp_path)})
    assert finding.status == "warn" and str(tmp_path) in finding.found
    assert "/a/bin/activate" in finding.fix
    assert python_env.check_environment("/a", "/usr", {"VIRTUAL_ENV": "/a"}).status == "ok"
    assert python_env.check_environment("/usr", "/usr", {}).status == "warn"


def test_python_path_of_another_python() -> None:
    other = "/opt/python3.8/lib/site-packages"
    assert python_env.check_python_path({}).status == "ok"
    assert python_env.check_python_path({"PYTHONPATH": other}).status == "fail"
    assert python_env.check_python_path({"PYTHONPATH": "/home/me/plugin"}).status == "warn"


REQUIRES = [
    "torch<2.14,>=2.6",
    "rich>=13",
    "mujoco==3.3.0; extra == 'embodied'",
    "metaworld==3.1.1; extra == 'embodied'",
    "peft<1,>=0.17; extra == 'reasoning'",
]


def _packages(**versions: str) -> dict[str, Finding]:
    findings = packages.check_packages(REQUIRES, versions.get)
    return {finding.name: finding for finding in findings}


def test_packages_within_bounds() -> None:
    found = _packages(torch="2.13.0+cpu", rich="15.0.0", mujoco="3.3.0", metaworld="3.1.1")
    assert {finding.status for finding in found.values()} == {"ok"}
    assert "mujoco 3.3.0" in found["extra embodied"].found
    assert "not installed" in found["extra reasoning"].found


def test_packages_missing_or_out_of_bounds() -> None:
    found = _packages(torch="2.14.0", mujoco="4.0.0")
    assert found["packages"].status == "fail" and "rich" in found["packages"].found
    assert found["torch"].status == "fail" and "<2.14" in found["torch"].found
    assert found["mujoco"].status == "fail" and "mujoco==3.3.0" in found["mujoco"].fix
    assert found["extra embodied"].status == "warn"
    assert "metaworld" in found["extra embodied"].found


def test_the_mujoco_that_breaks_metaworld() -> None:
    versions = {"mujoco": "4.0.0", "metaworld": "3.1.1"}
    (finding,) = packages.check_mujoco(versions.get)
    assert finding.status == "fail" and "mujoco==3.3.0" in finding.fix
    assert packages.check_mujoco({"mujoco": "4.0.0"}.get) == []
    assert packages.check_mujoco({**versions, "mujoco": "3.3.0"}.get) == []


def _torch(cuda: str | None, devices: int) -> SimpleNamespace:
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(is_available=lambda: devices > 0, device_count=lambda: devices),
    )


@pytest.mark.parametrize(
    ("cuda", "seen", "gpus", "status", "said"),
    [
        (None, 0, 0, "ok", "CPU build"),
        (None, 0, 2, "fail", "has 2 GPU"),
        ("13.0", 2, 2, "ok", "sees 2"),
        ("13.0", 0, 2, "fail", "sees none of 2"),
        ("13.0", 0, 0, "ok", "no GPU here"),
    ],
)
def test_torch_build(cuda: str | None, seen: int, gpus: int, status: str, said: str) -> None:
    finding = packages.check_torch(_torch(cuda, seen), gpus)
    assert finding.status == status and said in finding.found


def test_gpus_of_the_driver() -> None:
    gpu = NvidiaGpu(0, "GPU-aa", "NVIDIA H200", 140 * GIB, "580.65.06")
    finding = hardware.check_gpu([gpu, gpu._replace(index=1, uuid="GPU-bb")], "")
    assert finding.status == "ok"
    assert finding.found == "2 x NVIDIA H200, driver 580.65.06, 140.0 GiB"


def test_a_driver_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(timeout: float) -> None:
        raise NvidiaDriverError("Driver/library version mismatch")

    monkeypatch.setattr(hardware, "list_gpus", fail)
    finding = hardware.check_gpu(*hardware.query_gpus())
    assert finding.status == "fail" and "version mismatch" in finding.found


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "list_gpus", lambda timeout: [])
    assert hardware.check_gpu(*hardware.query_gpus()).status == "ok"


@pytest.mark.parametrize(("free", "status"), [(64 * 2**20, "fail"), (GIB, "warn"), (8 * GIB, "ok")])
def test_shared_memory(free: int, status: str) -> None:
    finding = hardware.check_shared_memory(free, free)
    assert finding.status == status
    assert ("--shm-size" in finding.fix) == (status != "ok")


@pytest.mark.parametrize(("free", "status"), [(2**20, "fail"), (5 * GIB, "warn"), (50 * GIB, "ok")])
def test_disk(tmp_path: Path, free: int, status: str) -> None:
    finding = hardware.check_disk(tmp_path / "logs" / "run", free)
    assert finding.status == status and str(tmp_path) in finding.found


def test_cores_and_memory() -> None:
    assert hardware.check_cores(1).status == "warn"
    assert hardware.check_cores(1.5).status == "warn"
    assert hardware.check_cores(4).status == "ok"
    assert hardware.check_memory(8 * GIB, GIB).status == "warn"
    assert hardware.check_memory(8 * GIB, 4 * GIB).status == "ok"


def _rendering(works: set[str], draws: set[str], **environ: str) -> Finding:
    return rendering.check_rendering(environ, works.__contains__, draws.__contains__, True)[-1]


def test_rendering_says_which_backend_to_set() -> None:
    both = {"egl", "osmesa"}
    assert "MUJOCO_GL=egl" in _rendering(both, both).fix
    assert "MUJOCO_GL=osmesa" in _rendering(both, {"osmesa"}).fix
    assert _rendering(both, both, MUJOCO_GL="osmesa").status == "ok"
    wrong = _rendering({"osmesa"}, {"osmesa"}, MUJOCO_GL="egl")
    assert wrong.status == "fail" and "osmesa" in wrong.fix
    nothing = _rendering(set(), set())
    assert nothing.status == "warn" and "apt-get install libosmesa6" in nothing.fix


def test_a_library_that_loads_but_draws_nothing() -> None:
    findings = rendering.check_rendering({}, lambda _: True, lambda _: False, True)
    assert [finding.status for finding in findings] == ["warn", "warn", "warn"]


def test_a_library_is_looked_for_under_its_names() -> None:
    def load(name: str) -> None:
        if name != "libOSMesa.so.6":
            raise OSError(name)

    assert rendering.loads("osmesa", load) and not rendering.loads("egl", load)


def test_ports_run_out() -> None:
    opened: list[socket.socket] = []

    def bind(port: int) -> socket.socket:
        if len(opened) == 3:
            raise OSError(errno.EADDRINUSE, "in use")
        opened.append(socket.socket())
        return opened[-1]

    finding = processes.check_ports(bind)
    assert finding.status == "fail" and "port 4 of" in finding.found
    assert all(item.fileno() == -1 for item in opened)


def test_a_taken_ray_port_is_said() -> None:
    def bind(port: int) -> socket.socket:
        if port:
            raise OSError(errno.EADDRINUSE, "in use")
        return socket.socket()

    finding = processes.check_ports(bind)
    assert finding.status == "ok" and "6379" in finding.found


def test_file_limit() -> None:
    assert processes.check_file_limit((1024, 4096)).status == "warn"
    assert processes.check_file_limit((65536, 65536)).status == "ok"
    unlimited = resource.RLIM_INFINITY
    assert processes.check_file_limit((unlimited, unlimited)).status == "ok"


def _ray(monkeypatch: pytest.MonkeyPatch, home: Path, **environ: str) -> dict[str, Finding]:
    monkeypatch.setenv("HOME", str(home))
    module = SimpleNamespace(__version__="2.60.0")
    return {item.name: item for item in processes.check_ray(environ, lambda _: module)}


def test_ray_on_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = _ray(monkeypatch, tmp_path)
    assert {finding.status for finding in found.values()} == {"ok"}


def test_ray_that_would_be_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = _ray(monkeypatch, tmp_path, RAY_ADDRESS="10.0.0.1:6379")
    assert found["ray address"].status == "warn"
    assert found["ray authentication"].status == "warn"
    assert "get-auth-token" in found["ray authentication"].fix
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    found = _ray(monkeypatch, tmp_path, RAY_ADDRESS="10.0.0.1:6379")
    assert found["ray authentication"].status == "ok"


def test_ray_without_authentication(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = _ray(monkeypatch, tmp_path, RAY_AUTH_MODE="disabled")
    assert found["ray authentication"].status == "warn"


def test_ray_that_does_not_load() -> None:
    def load(name: str) -> None:
        raise ImportError("No module named 'ray'")

    (finding,) = processes.check_ray({}, load)
    assert finding.status == "fail" and "pip install" in finding.fix


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_exit_code_and_report(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding("one", "ok", "fine"), Finding("two", status, "so so", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda log_dir: found)
    assert main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "one", "fine"]
    assert lines[1].startswith(status) and "fix: do this" in lines[2]
    assert main(["doctor", "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] == (code == 0)
    assert report["findings"][1] == {
        "name": "two",
        "status": status,
        "found": "so so",
        "fix": "do this",
    }


def test_this_machine_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "check_rendering", lambda: [])
    found = {finding.name: finding for finding in doctor.examine(tmp_path)}
    assert found["python"].status == "ok" and found["torch"].status == "ok"
    assert {"packages", "gpu", "shared memory", "disk", "ports", "ray"} <= set(found)
