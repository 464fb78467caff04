"""Files of the run that other nodes write come to the driver; those to read go to the nodes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rlinf.scheduler.cluster import run_files
from rlinf.scheduler.cluster.run_files import RunFiles
from rlinf.scheduler.places import place_on_node, staging
from rlinf.scheduler.topology.node import NodeInfo

RUN = "0a1b"


class Nodes:
    """Nodes whose temporary folders are their own, while tasks run on them."""

    def __init__(self, folder: Path, count: int):
        self.folder = folder
        self.lost: set[str] = set()
        self.infos = [
            NodeInfo(node_rank=n + 1, ray_id=f"n{n}", node_ip=f"10.0.0.{n}", num_cpus=1)
            for n in range(count)
        ]
        for info in self.infos:
            (folder / info.ray_id).mkdir()

    def start_on(self, ray_id, function, *args):
        if ray_id in self.lost:
            return self._fail
        value = self.there(ray_id, function, *args)
        return lambda seconds: value

    def there(self, ray_id, function, *args):
        before, tempfile.tempdir = tempfile.tempdir, str(self.folder / ray_id)
        try:
            return function(*args)
        finally:
            tempfile.tempdir = before

    def _fail(self, seconds):
        raise ConnectionError("the node is gone")

    def write(self, ray_id: str, path: Path, data: bytes) -> None:
        place = self.there(ray_id, place_on_node, path, RUN)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path, 2)


@pytest.fixture
def run(tmp_path):
    """Folder of the run at the driver, which the nodes do not see while they write."""
    return tmp_path / "run"


def files(nodes: Nodes) -> RunFiles:
    return RunFiles(nodes, nodes.infos, RUN)


@pytest.mark.parametrize("size", [0, 1, run_files.CHUNK, 3 * run_files.CHUNK + 5])
def test_what_nodes_have_written_comes_here_and_goes_there(nodes, run, size):
    data = os.urandom(size)
    nodes.write("n0", run / "part" / "a.bin", data)
    nodes.write("n1", run / "part" / "deep" / "b.bin", b"b")
    nodes.write("n1", run / "other", b"not asked for")
    files(nodes).collect(run / "part")
    assert (run / "part" / "a.bin").read_bytes() == data
    assert (run / "part" / "deep" / "b.bin").read_bytes() == b"b"
    assert not (run / "other").exists()
    assert not list(nodes.there("n0", staging, RUN).rglob("*.bin"))


def test_a_node_that_sees_the_mark_writes_there_itself(nodes, run):
    found = files(nodes)
    found.mark(run)
    nodes.write("n0", run / "checkpoints" / "x", b"x")
    assert (run / "checkpoints" / "x").read_bytes() == b"x"
    found.end(run, 1.0)
    assert not list(run.glob(".rlinf-*"))


def test_a_file_that_gets_shorter_on_its_way_is_no_success(nodes, run, monkeypatch):
    nodes.write("n0", run / "a", b"12345")
    monkeypatch.setattr(run_files, "_read", lambda *args: b"123")
    with pytest.raises(OSError, match="node 1 .*became shorter"):
        files(nodes).collect(run)


def test_a_node_that_is_gone_fails_a_collection(nodes, run):
    nodes.lost.add("n1")
    with pytest.raises(ConnectionError):
        files(nodes).collect(run)


def test_logs_are_taken_as_they_grow(nodes, run):
    found = files(nodes)
    nodes.write("n0", run / "rank_0.log", b"one\n")
    nodes.write("n0", run / "rank_0.record", b"only there")
    found._take_new(run, 1.0)
    assert (run / "rank_0.log").read_bytes() == b"one\n"
    nodes.write("n0", run / "rank_0.log", b"one\ntwo\n")
    found._take_new(run, 1.0)
    assert (run / "rank_0.log").read_bytes() == b"one\ntwo\n"
    nodes.write("n0", run / "rank_0.log", b"new\n")
    found.end(run, 1.0)
    assert (run / "rank_0.log").read_bytes() == b"new\n"
    assert not (run / "rank_0.record").exists()
    assert not nodes.there("n0", staging, RUN).exists()


def test_a_lost_node_costs_its_logs_and_nothing_else(nodes, run, capsys):
    found = files(nodes)
    nodes.write("n0", run / "a.log", b"a")
    nodes.write("n1", run / "b.log", b"b")
    nodes.lost.add("n0")
    found.end(run, 1.0)
    said = capsys.readouterr().err
    assert said.count("node 1 (10.0.0.0)") == 1 and "the node is gone" in said
    assert not (run / "a.log").exists() and (run / "b.log").read_bytes() == b"b"
    assert nodes.there("n0", staging, RUN).exists(), "what was not taken stays"


def test_a_folder_is_delivered_to_those_who_lack_it(nodes, run, monkeypatch):
    monkeypatch.setattr(run_files, "CHUNK", 1000)
    data = {"manifest": b"m", "empty": b"", "deep/large": os.urandom(5500)}
    for name, content in data.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    has = run_files._has
    shares = iter([True, False])
    monkeypatch.setattr(run_files, "_has", lambda *args: has(*args) and next(shares))
    found = files(nodes)
    found.deliver(run, "manifest")
    assert not nodes.there("n0", staging, RUN).exists()
    place = nodes.there("n1", run_files.staged, run, RUN)
    assert {n: (place / n).read_bytes() for n in data} == data
    found.drop(run)
    assert not place.exists()


def test_another_folder_of_the_same_name_is_not_taken_for_it(run):
    run.mkdir()
    (run / "manifest").write_text("of another run")
    assert not run_files._has(str(run), "manifest", "0" * 64)
