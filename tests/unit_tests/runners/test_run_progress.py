"""What the live view is told: the calls that the driver waits for, and how full channels are."""

from __future__ import annotations

import os
import threading

import numpy as np

from rlinf.runners import run_progress
from rlinf.scheduler import Channel, PackedPlacementStrategy, Worker


class Reader(Worker):
    def read(self, path: str) -> str:
        with self.worker_timer("reading"), open(path) as file:
            return file.read()


def test_waits_and_queues_of_a_run(cluster, tmp_path, monkeypatch):
    assert run_progress.waits() == [] and run_progress.queue_depths() == []
    channel, other = Channel.create("rollouts"), Channel.create("requests")
    for _ in range(3):
        channel.put(np.zeros(1 << 20, dtype=np.uint8))
    depths = run_progress.queue_depths()
    assert depths[0].startswith("rollouts 3 (3 MiB") and depths[1:] == ["requests 0"]
    channel.get()
    assert run_progress.queue_depths()[0].startswith("rollouts 2 (2 MiB")
    assert other.empty()

    group = Reader.create_group().launch(
        cluster, placement_strategy=PackedPlacementStrategy(0, 0), name="Reader"
    )
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    thread = threading.Thread(target=group.read(pipe).wait)
    thread.start()
    while not run_progress.waits():
        threading.Event().wait(0.01)
    assert run_progress.waits() == ["Reader.read() 0 s"]
    monkeypatch.setattr(run_progress, "_LONG_WAIT", 0.0)
    while "reading" not in run_progress.waits()[0]:
        threading.Event().wait(0.01)
    # Taken from the worker's black box: it is busy, and nobody asks it.
    assert run_progress.waits()[0].startswith("Reader.read() 0 s (Reader:0: reading (for 0.")
    with open(pipe, "w") as file:
        file.write("word")
    thread.join()
    assert run_progress.waits() == []
