"""Metrics go to every back-end on one step axis, and one that fails stops nothing."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rlinf.config.schema.runner import LoggerConfig
from rlinf.utils import metric_backends
from rlinf.utils.metric_logger import MetricLogger


def settings(*backends: str, **more: object) -> LoggerConfig:
    return LoggerConfig(logger_backends=list(backends), experiment_name="mine", **more)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class FakeRun:
    """What `init` of both services gives: `log` with a step, and `finish`."""

    def __init__(self, **arguments: object):
        self.arguments = arguments
        self.id = arguments.get("id") or f"made-{len(arguments)}"
        self.logged: list[tuple[int, dict]] = []
        self.finished = False

    def log(self, data: dict, step: int) -> None:
        self.logged.append((step, data))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def services(monkeypatch) -> dict[str, list[FakeRun]]:
    """Stand-ins for wandb and swanlab; their runs by name."""
    runs: dict[str, list[FakeRun]] = {"wandb": [], "swanlab": []}
    for name, made in runs.items():
        module = ModuleType(name)

        def init(made: list = made, **arguments: object) -> FakeRun:
            made.append(FakeRun(**arguments))
            return made[-1]

        module.init = init
        module.Settings = SimpleNamespace
        module.Error = type("Error", (Exception,), {})
        monkeypatch.setitem(sys.modules, name, module)
    return runs


STEPS = [(1, {"env/return": 1.5, "train/loss": 0.1}), (1, {"eval/return": 2.0}), (2, {"a/b": 3.0})]


def write(logger: MetricLogger) -> None:
    for step, metrics in STEPS:
        logger.log(metrics, step)
    logger.close()


def test_every_backend_gets_every_step(tmp_path, services):
    (tmp_path / "config.yaml").write_text("runner: {seed: 3}\n")
    write(MetricLogger(tmp_path, settings("tensorboard", "jsonl", "wandb", "swanlab")))
    assert lines(tmp_path) == [{"step": step, **metrics} for step, metrics in STEPS]
    for name in ("wandb", "swanlab"):
        (run,) = services[name]
        assert run.logged == STEPS and run.finished
        assert run.arguments["config"] == {"runner": {"seed": 3}}
        assert run.arguments["project"] == "rlinf"
    assert services["swanlab"][0].arguments["mode"] == "cloud"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {
        (event.step, tag): event.value
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    }
    every = {(step, name): value for step, metrics in STEPS for name, value in metrics.items()}
    assert found == pytest.approx(every)


def test_a_resumed_run_goes_on_in_the_same_curves(tmp_path, services):
    config = settings("jsonl", "wandb")
    first = MetricLogger(tmp_path, config)
    first.start(0)
    write(first)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "cut')
    again = MetricLogger(tmp_path, config)
    again.start(1)
    again.log({"a/b": 4.0}, 2)
    again.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 1, 2]
    one, other = services["wandb"]
    assert one.arguments["id"] is None and other.arguments["id"] == one.id
    fresh = MetricLogger(tmp_path, config)
    fresh.start(0)
    assert lines(tmp_path) == [] and services["wandb"][2].arguments["id"] is None
    fresh.close()


def test_the_proxy_and_the_team_reach_wandb(tmp_path, services):
    config = settings("wandb", wandb_proxy="http://proxy:1", wandb_entity="we")
    write(MetricLogger(tmp_path, config))
    arguments = services["wandb"][0].arguments
    assert arguments["entity"] == "we"
    assert arguments["settings"].https_proxy == "http://proxy:1"


@pytest.mark.parametrize("mode", ["cloud", "offline"])
def test_a_resumed_run_goes_on_in_the_same_experiment(tmp_path, services, mode):
    for step in (0, 2, 0):
        logger = MetricLogger(tmp_path, settings("swanlab", swanlab_mode=mode))
        logger.start(step)
        logger.close()
    first, resumed, new = (run.arguments for run in services["swanlab"])
    assert first["id"] == resumed["id"] != new["id"] and len(first["id"]) == 21
    assert {run["resume"] for run in (first, resumed, new)} == {"allow"}


def test_a_backend_that_fails_is_said_once_and_stops_nothing(tmp_path, services, capsys):
    logger = MetricLogger(tmp_path, settings("jsonl", "wandb", "swanlab"))
    logger.log({"a/b": 1.0}, 1)

    def fail(data: dict, step: int) -> None:
        raise ConnectionError("no route to host")

    services["wandb"][0].log = fail
    logger.log({"a/b": 2.0}, 2)
    logger.log({"a/b": 3.0}, 3)
    logger.close()
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1
    assert "not written to wandb from here on: ConnectionError: no route to host" in said
    assert "still written to: jsonl, swanlab" in said
    assert [line["a/b"] for line in lines(tmp_path)] == [1.0, 2.0, 3.0]
    assert len(services["swanlab"][0].logged) == 3


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_without_a_connection_everything_is_kept_for_later(
    tmp_path, services, monkeypatch, capsys, name
):
    module = sys.modules[name]
    init = module.init

    def refuse(**arguments: object) -> FakeRun:
        if arguments.get("mode") != "offline":
            raise module.Error("no API key")
        return init(**arguments)

    monkeypatch.setattr(module, "init", refuse)
    write(MetricLogger(tmp_path, settings(name, "jsonl")))
    said = capsys.readouterr().err
    assert f"no connection to {name} (Error: no API key)" in said and f"{name} sync" in said
    (run,) = services[name]
    assert run.logged == STEPS and run.finished and len(lines(tmp_path)) == 3


def test_what_cannot_be_kept_offline_either_is_switched_off(
    tmp_path, services, monkeypatch, capsys
):
    def fail(**arguments: object) -> FakeRun:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["swanlab"], "init", fail)
    write(MetricLogger(tmp_path, settings("swanlab", "jsonl", swanlab_mode="offline")))
    said = capsys.readouterr().err
    assert "not written to swanlab from here on: OSError" in said and "connection" not in said
    assert len(lines(tmp_path)) == 3


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_run_does_not_wait_for_a_server_that_is_gone(
    tmp_path, services, monkeypatch, capsys, name
):
    monkeypatch.setattr(metric_backends, "FINISH_SECONDS", 0.1)
    logger = MetricLogger(tmp_path, settings(name, "jsonl"))
    logger.log({"a/b": 1.0}, 1)
    back = threading.Event()
    monkeypatch.setattr(services[name][0], "finish", back.wait)
    logger.close()
    back.set()
    said = capsys.readouterr().err
    assert "not taken everything within 0.1 s" in said and f"{name} sync {tmp_path}" in said


def test_swanlab_does_not_get_the_thread_that_signals_come_to(tmp_path, services, monkeypatch):
    init, threads = sys.modules["swanlab"].init, []

    def note(**arguments: object) -> FakeRun:
        threads.append(threading.current_thread())
        return init(**arguments)

    monkeypatch.setattr(sys.modules["swanlab"], "init", note)
    write(MetricLogger(tmp_path, settings("swanlab")))
    assert threads and threading.main_thread() not in threads


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setitem(sys.modules, name, None)
    write(MetricLogger(tmp_path, settings(name, "jsonl")))
    said = capsys.readouterr().err
    assert f"pip install {name}" in said and "training goes on" in said
    assert len(lines(tmp_path)) == 3


def test_every_name_of_the_schema_has_a_backend():
    names = LoggerConfig.model_json_schema()["properties"]["logger_backends"]["items"]["enum"]
    assert set(names) == set(metric_backends.BACKENDS)
