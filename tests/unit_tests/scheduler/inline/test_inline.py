"""Tests workers that are threads of the driver: they behave as processes of their own do."""

from __future__ import annotations

import os
import random
import threading

import numpy as np
import pytest
import torch

from rlinf.scheduler import Channel, Cluster, Worker
from rlinf.scheduler.errors import ClusterError, WaitTimeout
from rlinf.scheduler.net import interrupts
from rlinf.scheduler.placement import NodePlacementStrategy

ONE = NodePlacementStrategy([0])
_running: list[str] = []
"""Workers that are in a stretch of code without a wait."""


class Asker(Worker):
    """Sends something and waits for the answer."""

    def ask(self, question):
        """Draws random numbers on the way, as the other one does."""
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        os.environ["OF_THIS_WORKER"] = "asker"
        torch.set_num_threads(2)
        self.send(question, "answerer", 0)
        answer = self.recv("answerer", 0)
        drawn = random.random(), np.random.rand(), torch.rand(()).item()
        return answer, drawn, os.environ["OF_THIS_WORKER"], torch.get_num_threads()

    def who(self):
        """Facts of the process, as the worker sees it."""
        own = Worker.current_worker is self
        return own, self.rank, self.world_size, os.environ["WORKER_NAME"], os.getpid()

    def fail(self):
        """Raises."""
        raise LookupError("nothing there")

    def hang(self):
        """Waits for what never comes."""
        self.recv("answerer", 0)

    def keep(self, items):
        """Changes an argument."""
        items.append("changed")
        return items

    def stay_alone(self, times):
        """Return whether another worker ran in the middle of this one's work."""
        return stay_alone("asker", times)


class Answerer(Worker):
    """Answers in a coroutine."""

    async def answer(self):
        """Draws random numbers on the way, as the other one does."""
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        question = await self.recv("asker", 0, async_op=True)
        drawn = random.random(), np.random.rand(), torch.rand(()).item()
        self.send([question, "answered"], "asker", 0)
        return drawn, os.environ.get("OF_THIS_WORKER"), torch.get_num_threads()

    def who(self):
        """A plain method, in a thread of its own."""
        return Worker.current_worker is self, os.environ["WORKER_NAME"]

    async def pump(self, source: Channel, target: Channel):
        """Serves until the channel is closed, beside other calls."""
        async for item in _items(source):
            target.put(item + 1)
        return "closed"

    def stay_alone(self, times):
        """Return whether another worker ran in the middle of this one's work."""
        return stay_alone("answerer", times)


async def _items(channel):
    from rlinf.scheduler.channel.errors import ChannelClosed

    while True:
        try:
            yield await channel.get(async_op=True)
        except ChannelClosed:
            return


def stay_alone(name: str, times: int) -> bool:
    alone = True
    for _ in range(times):
        _running.append(name)
        sum(range(5000))
        alone = alone and _running == [name]
        _running.remove(name)
    return alone


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("RLINF_DEBUG", "inline")
    monkeypatch.setattr("rlinf.scheduler.debug.debugger.DriverDebugger.post_mortem", _no_debugger)
    cfg = {"num_nodes": 1, "timeouts": {"recv": 60.0}}
    before = torch.get_num_threads()
    with Cluster(cluster_cfg=cfg, distributed_log_dir=str(tmp_path)) as running:
        yield running
    assert interrupts.around_waits is None and Worker.current_worker is None
    assert "WORKER_NAME" not in os.environ and torch.get_num_threads() == before


def _no_debugger(self, error, trace=None):
    """Nobody is there to type."""


@pytest.fixture
def asker(cluster):
    return Asker.create_group().launch(cluster, ONE, name="asker")


@pytest.fixture
def answerer(cluster):
    return Answerer.create_group().launch(cluster, ONE, name="answerer")


def test_workers_exchange_data_and_each_has_its_own_process_state(asker, answerer):
    asking, answering = asker.ask({"x": torch.ones(3)}), answerer.answer()
    ((answer, drawn, variable, threads),) = asking.wait(timeout=60)
    ((drawn_too, variable_too, threads_too),) = answering.wait(timeout=60)
    assert torch.equal(answer[0]["x"], torch.ones(3)) and answer[1] == "answered"
    # As each would draw alone.
    assert drawn == drawn_too
    assert (variable, variable_too) == ("asker", None)
    assert (threads, threads_too) == (2, 1)


def test_a_worker_sees_what_it_would_in_a_process_of_its_own(asker, answerer):
    assert asker.who().wait() == [(True, 0, 1, "asker:0", os.getpid())]
    assert answerer.who().wait() == [(True, "answerer:0")]


def test_arguments_are_copied(asker):
    items = ["kept"]
    assert asker.keep(items).wait() == [["kept", "changed"]]
    assert items == ["kept"]


def test_one_runs_at_a_time(asker, answerer):
    calls = [asker.stay_alone(300), answerer.stay_alone(300)]
    assert [call.wait(timeout=60) for call in calls] == [[True], [True]]


def test_services_run_beside_other_calls(cluster, answerer):
    source, target = Channel.create("source"), Channel.create("target")
    pumping = answerer.pump(source, target)
    for number in range(5):
        source.put(number)
        assert target.get(timeout=60) == number + 1
        assert answerer.who().wait() == [(True, "answerer:0")]
    assert not pumping.done()
    source.close()
    assert pumping.wait(timeout=60) == ["closed"]


def test_what_a_worker_raises_is_raised_here(asker):
    with pytest.raises(LookupError, match="nothing there") as caught:
        asker.fail().wait()
    assert "in fail" in str(caught.value.__cause__)


def test_deadlines_pass_as_well(asker, answerer):
    with pytest.raises(WaitTimeout, match=r"asker.hang\(\)"):
        asker.hang().wait(timeout=0.2)


def test_durations_are_known(asker):
    call = asker.keep([])
    call.wait()
    assert call.consume_duration() >= 0.0


def test_a_ray_of_somebody_else_in_this_process_lives_on(ray_session, monkeypatch, tmp_path):
    import ray

    monkeypatch.setenv("RLINF_DEBUG", "inline")
    with Cluster(num_nodes=1, distributed_log_dir=str(tmp_path)) as cluster:
        group = Answerer.create_group().launch(cluster, ONE, name="answerer")
        assert group.who().wait() == [(True, "answerer:0")]
    assert ray.get(ray.remote(lambda: 3).remote(), timeout=60) == 3


def test_several_ranks_are_refused(cluster):
    with pytest.raises(ClusterError, match="'pair' has 2 ranks.*component_placement"):
        Asker.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="pair")


def test_several_nodes_are_refused(monkeypatch):
    monkeypatch.setenv("RLINF_DEBUG", "inline")
    with pytest.raises(ClusterError, match="num_nodes is 2"):
        Cluster(num_nodes=2)
    assert interrupts.around_waits is None


def test_a_wrong_mode_is_refused(monkeypatch):
    monkeypatch.setenv("RLINF_DEBUG", "yes")
    with pytest.raises(ClusterError, match="RLINF_DEBUG='yes'; allowed: 0, 1, inline"):
        Cluster(num_nodes=1)


def test_nothing_runs_on_after_the_end(monkeypatch, tmp_path):
    monkeypatch.setenv("RLINF_DEBUG", "inline")
    for name in ("first", "second"):
        with Cluster(num_nodes=1, distributed_log_dir=str(tmp_path / name)) as cluster:
            group = Answerer.create_group().launch(cluster, ONE, name="answerer")
            assert group.who().wait() == [(True, "answerer:0")]
            stuck = Asker.create_group().launch(cluster, ONE, name="asker")
            stuck.hang()
    workers = [thread for thread in threading.enumerate() if "answerer" in thread.name]
    for thread in workers:
        thread.join(60)
        assert not thread.is_alive()
    # One that waits for what never comes does not keep the process.
    assert all(t.daemon for t in threading.enumerate() if "asker" in t.name)
