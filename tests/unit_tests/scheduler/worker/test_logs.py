"""Each worker has a log of its own, with what it logs, prints and raises."""

from __future__ import annotations

import os
import sys
import threading
import warnings

import pytest

from rlinf.cli.worker_logs import LogFile, Selection, find_logs, merged
from rlinf.scheduler import PackedPlacementStrategy, Worker, wait_all
from rlinf.scheduler.worker.logs import worker_logger
from rlinf.scheduler.worker.pending import pending_calls
from rlinf.utils.logging import set_logger
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


class Talker(Worker):
    def talk(self) -> None:
        self.log_info(f"I am {self._rank}")
        self.log_debug("not at this level")
        print("printed,", "in", end=" ")
        print("one line")
        print("\r10%\r100%", file=sys.stderr)
        warnings.warn("careful now", stacklevel=1)

    def fail(self) -> None:
        raise ValueError("a reason\nof two lines")

    def wait_for_word(self, path: str) -> int:
        with open(path) as file:
            file.read()
        return self._rank


def test_a_worker_logs_prints_and_raises_into_its_file(shared_cluster):
    cluster = shared_cluster
    group = Talker.create_group().launch(
        cluster, placement_strategy=PackedPlacementStrategy(0, 1), name="Talker"
    )
    group.talk().wait()
    with pytest.raises(ValueError, match="a reason"):
        group.execute_on(1).fail().wait()
    found = find_logs(cluster.log_dir, "Talker")
    assert list(found) == ["Talker:0", "Talker:1"]
    entries = list(merged([LogFile(*item) for item in found.items()], Selection()))
    assert entries == sorted(entries, key=lambda entry: entry.time)
    for rank in (0, 1):
        own = [(e.level, e.message) for e in entries if e.worker == f"Talker:{rank}"]
        texts = [text for _, text in own]
        assert texts[0].startswith("Talker starts, pid ")
        assert ("INFO", f"I am {rank}") in own and ("INFO", "printed, in one line") in own
        assert ("WARNING", "100%") in own
        assert any(level == "WARNING" and "careful now" in text for level, text in own)
        assert len([text for text in texts if "I am" in text]) == 1, "not once more as a print"
        assert not any("actor_name" in text or "not at this level" in text for text in texts)
    level, text = own[-1]
    assert level == "ERROR" and text.startswith("fail() raised\nTraceback")
    assert text.endswith("ValueError: a reason\nof two lines")


def test_what_is_waited_for_can_be_asked(shared_cluster, tmp_path):
    one, two = (
        Talker.create_group().launch(
            shared_cluster, placement_strategy=PackedPlacementStrategy(0, 0), name=name
        )
        for name in ("One", "Two")
    )
    pipes = [str(tmp_path / name) for name in ("one", "two")]
    for pipe in pipes:
        os.mkfifo(pipe)
    calls = one.wait_for_word(pipes[0]), two.wait_for_word(pipes[1])
    results = []
    thread = threading.Thread(target=lambda: results.append(wait_all(*calls)))
    thread.start()

    def until(names: list[str]) -> list:
        wait_until(lambda: [call.name for call in pending_calls()] == names, 3 * PROMPTLY)
        return pending_calls()

    first, second = until(["One.wait_for_word()", "Two.wait_for_word()"])
    assert (first.group, first.method, first.ranks) == ("One", "wait_for_word", (0,))
    open(pipes[0], "w").close()
    (left,) = until(["Two.wait_for_word()"])
    assert left.seconds >= second.seconds, "since the wait began"
    open(pipes[1], "w").close()
    thread.join()
    assert results == [[[0], [0]]] and pending_calls() == []


def test_a_full_disk_costs_lines_and_one_warning(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    logger = worker_logger("full", "Full-Rank-0", "/dev/full")
    try:
        for number in range(20):
            logger.info("line %d", number)
            print("printed", number)
    finally:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        set_logger(None)
    seen = capsys.readouterr()
    assert seen.out.count("printed") == 20 and seen.out.count("line") == 20
    assert seen.err.count("/dev/full cannot be written") == 1 and "Traceback" not in seen.err
