"""Launching groups and calling them."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys

import pytest

from rlinf.scheduler import (
    CallCancelled,
    Cluster,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    Scatter,
    WaitTimeout,
    Worker,
    WorkerException,
    WorkerGroup,
    wait_all,
)
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until
from tests.unit_tests.scheduler.worker.workers import (
    Closing,
    Coroutines,
    Doomed,
    Echo,
    Picky,
)


def slots(count: int) -> FlexiblePlacementStrategy:
    return FlexiblePlacementStrategy([[i] for i in range(count)])


def test_calls_run_on_all_ranks_in_order(cluster):
    group = Echo.create_group(10).launch(cluster, slots(3), name="calls")
    assert group.add(5).wait() == [15, 16, 17]
    assert group.add(x=1).wait() == [11, 12, 13]
    assert group.execute_on(2, 0).add().wait() == [12, 10]
    assert group.add(Scatter([1, 2, 3])).wait() == [11, 13, 15]
    assert group.add().wait() == [10, 11, 12], "execute_on holds for one call only"
    assert group.world_size == 3
    assert [i.rank for i in group.worker_info_list] == [0, 1, 2]


def test_launch_without_a_strategy_and_by_node(cluster):
    assert Echo.create_group().launch(cluster).add().wait() == [0]
    two = Echo.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="two")
    assert two.add().wait() == [0, 1]


def test_worker_environment(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="environment")
    names = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_NAME",
        "CUDA_VISIBLE_DEVICES",
    ]
    first, second = group.env(*names, "MASTER_PORT", "MASTER_ADDR").wait()
    assert [second[n] for n in names] == ["1", "2", "1", "2", "environment", ""]
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert group.in_main_thread().wait() == [True, True]


def test_variables_of_the_interpreter_reach_it_and_torch_is_not_loaded_for_nothing(
    ray_session, tmp_path
):
    labelled = {"label": "own", "node_ranks": 0}
    labelled["env_configs"] = [{"node_ranks": 0, "env_vars": [{"PYTHONHASHSEED": "7"}]}]
    config = {"num_nodes": 1, "node_groups": [labelled]}
    with Cluster(cluster_cfg=config, distributed_log_dir=str(tmp_path)) as cluster:
        place = NodePlacementStrategy([0], node_group_label="own")
        group = Echo.create_group().launch(cluster, place, name="interpreter")
        command, env = [sys.executable, "-c", "print(hash('text'))"], {"PYTHONHASHSEED": "7"}
        told = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert group.hash_of("text").wait() == [int(told.stdout)]
        assert group.loaded("torch").wait() == [False], "a worker loads torch only if it uses it"


def test_process_group_needs_no_further_help(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="reduce")
    assert group.all_reduce().wait() == [3.0, 3.0]


def test_ports_are_unique(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="ports")
    ports = [port for _ in range(10) for port in group.port().wait()]
    assert len(set(ports)) == 20


def test_coroutines_interleave_and_plain_methods_keep_their_thread(cluster):
    group = Coroutines.create_group().launch(cluster, slots(2), name="coroutines")
    waiting = group.wait_for_event()
    blocked = group.block(0.5)
    assert not waiting.done()
    group.set_event().wait(timeout=PROMPTLY)
    assert waiting.wait(timeout=PROMPTLY) == [0, 1]
    blocked.wait()
    assert group.plain_in_own_thread().wait() == [True, True]
    with pytest.raises(LookupError, match="a coroutine fails"):
        group.fail().wait()


def test_async_wait(cluster):
    group = Echo.create_group(1).launch(cluster, slots(2), name="awaited")

    async def run() -> list[int]:
        first = group.add(1)
        assert await group.add(2).async_wait() == [3, 4]
        with pytest.raises(ValueError, match="fails"):
            await group.fail().async_wait()
        return await first

    assert asyncio.run(run()) == [2, 3]


def test_timers_belong_to_their_call(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="timers")
    first, second = group.timed(), group.add()
    durations, per_rank = first.consume_durations(return_per_rank=True)
    assert set(durations) == {"inner", "timed"}
    assert 0.04 <= durations["inner"] <= durations["timed"]
    assert len(per_rank) == 2
    assert set(second.consume_durations()) == {"add"}
    assert first.consume_duration("min") <= first.consume_duration("max")
    with pytest.raises(ValueError, match="median"):
        first.consume_duration("median")
    assert "decorated" in group.decorated().consume_durations()


def test_a_group_is_found_by_name(cluster):
    Echo.create_group(5).launch(cluster, slots(2), name="findme")
    group = WorkerGroup.from_group_name(Echo, "findme")
    assert group.add().wait() == [5, 6]
    with pytest.raises(WaitTimeout, match="nobody"):
        WorkerGroup.from_group_name(Echo, "nobody", timeout=0.3)


class Finder(Worker):
    """Calls another group from inside a worker."""

    def ask(self, name: str) -> list[int]:
        return WorkerGroup.from_group_name(Echo, name).add(1).wait()

    def nodes(self) -> int:
        return Cluster().num_nodes


def test_a_worker_can_call_another_group(cluster):
    Echo.create_group(5).launch(cluster, slots(2), name="callee")
    finder = Finder.create_group().launch(cluster, slots(1), name="finder")
    assert finder.ask("callee").wait() == [[6, 7]]
    assert finder.nodes().wait() == [1]


# -- cancelling and deadlines ---------------------------------------------------------------------


def wait_running(group: WorkerGroup, method: str) -> None:
    """Waits until all ranks are in a method."""
    server, names = group._cluster._server, [i.name for i in group.worker_info_list]

    def running() -> bool:
        status = server.inquire("status", None, names, timeout=PROMPTLY)
        return all(status.get(name, "").startswith(f"running {method}()") for name in names)

    wait_until(running)


@pytest.mark.parametrize("method, args", [("sleep", (600,)), ("busy", (600,))])
def test_a_running_call_can_be_cancelled(cluster, method, args):
    group = Echo.create_group().launch(cluster, slots(2), name="cancelled")
    handle = getattr(group, method)(*args)
    queued = group.add()
    wait_running(group, method)
    handle.cancel()
    with pytest.raises(CallCancelled):
        handle.wait(timeout=PROMPTLY)
    assert queued.wait(timeout=PROMPTLY) == [0, 1], "the worker lives on"


def test_a_call_that_has_not_begun_can_be_cancelled(cluster):
    group = Echo.create_group().launch(cluster, slots(1), name="queued")
    running, queued = group.sleep(1), group.sleep(600)
    queued.cancel()
    assert running.wait() == ["slept"]
    with pytest.raises(CallCancelled):
        queued.wait(timeout=PROMPTLY)


def test_a_coroutine_can_be_cancelled(cluster):
    group = Coroutines.create_group().launch(cluster, slots(2), name="coroutine_cancel")
    handle = group.forever()
    wait_running(group, "forever")
    handle.cancel()
    with pytest.raises(CallCancelled):
        handle.wait(timeout=PROMPTLY)


def test_a_deadline_says_who_is_doing_what(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="slow")
    handle = group.sleep(600)
    wait_running(group, "sleep")
    with pytest.raises(WaitTimeout) as caught:
        handle.wait(timeout=0.5)
    text = str(caught.value)
    assert "driver waited 0.5 s for slow.sleep() on ranks [0, 1]" in text
    assert "slow:1" in text and "running sleep()" in text
    stacks = (cluster.log_dir / "stacks" / "slow_1.txt").read_text()
    assert "in sleep" in stacks


def test_wait_all_raises_the_first_failure_not_the_first_handle(cluster):
    slow = Echo.create_group().launch(cluster, slots(1), name="slow")
    bad = Echo.create_group().launch(cluster, slots(1), name="bad")
    with pytest.raises(ValueError, match="fails"):
        wait_all(slow.sleep(600), bad.fail())


def test_the_deadline_of_the_config_holds_for_all_waits(ray_session, tmp_path):
    cfg = {"num_nodes": 1, "timeouts": {"call": 1.0}}
    with Cluster(cluster_cfg=cfg, distributed_log_dir=str(tmp_path)) as cluster:
        group = Echo.create_group().launch(cluster, slots(2), name="late")
        done = group.add()
        assert done.wait(timeout=PROMPTLY) == [0, 1]
        for wait in (wait_all, lambda handle: handle.wait()):
            with pytest.raises(WaitTimeout, match=r"waited 1 s for late.sleep\(\)"):
                wait(group.sleep(600))
        with pytest.raises(WaitTimeout, match="late.rlinf_timers"):
            done.consume_durations()


# -- exceptions
# -------------------------------------------------------------------------------------


def test_exceptions_keep_their_type_and_bring_the_remote_traceback(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="failing")
    with pytest.raises(ValueError, match="this method fails") as caught:
        group.fail().wait()
    assert type(caught.value) is ValueError
    assert "workers.py" in str(caught.value.__cause__) and "in fail" in str(caught.value.__cause__)
    assert "host.py" not in str(caught.value.__cause__)
    with pytest.raises(Picky) as picky:
        group.fail_picky().wait()
    assert (picky.value.code, picky.value.detail) == (3, "kept")
    assert group.add().wait() == [0, 1], "a failed call does not end the worker"


def test_an_exception_that_cannot_travel_is_told_in_words(cluster):
    group = Unpicklable.create_group().launch(cluster, slots(1), name="unpicklable")
    with pytest.raises(WorkerException, match="Local: cannot travel"):
        group.fail().wait()


class Unpicklable(Worker):
    """Raises what no pickle can carry."""

    def fail(self) -> None:
        import threading

        class Local(Exception):
            def __reduce__(self):
                return threading.Lock, ()

            def __new__(cls, *args):
                if args == ("twice",):
                    raise TypeError
                return super().__new__(cls, *args)

        error = Local("cannot travel")
        error.args = ("cannot travel", threading.Lock())
        Local.__str__ = lambda self: "cannot travel"
        raise error


def test_sys_exit_in_a_method_is_an_error_of_the_method(cluster):
    group = Echo.create_group().launch(cluster, slots(1), name="leaving")
    with pytest.raises(RuntimeError, match=r"leave\(\) called sys.exit\(7\)"):
        group.leave().wait()
    assert group.add().wait() == [0]


def test_constructor_errors_come_from_launch(cluster):
    with pytest.raises(ArithmeticError, match="raised on purpose"):
        Doomed.create_group("raise").launch(cluster, slots(2), name="doomed")
    assert "doomed" not in cluster._runtime.registry.ask("groups")
    Echo.create_group().launch(cluster, slots(2), name="doomed")


# -- mistakes of the caller
# ---------------------------------------------------------------------------


def test_mistakes_are_explained(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="mistakes")
    with pytest.raises(AttributeError, match="has no public method 'ad'; did you mean add"):
        group.ad()
    with pytest.raises(AttributeError, match="private"):
        group._secret()
    with pytest.raises(ValueError, match="ranks 0-1, not 2"):
        group.execute_on(2)
    with pytest.raises(ValueError, match="needs at least one rank"):
        group.execute_on()
    with pytest.raises(ValueError, match="Scatter holds 3 values for 2 ranks"):
        group.add(Scatter([1, 2, 3]))
    with pytest.raises(ValueError, match="there is a group 'mistakes' already"):
        Echo.create_group().launch(cluster, slots(1), name="mistakes")
    with pytest.raises(ValueError, match="':'"):
        Echo.create_group().launch(cluster, slots(1), name="a:b")
    with pytest.raises(ValueError, match="restart policy"):
        Echo.create_group().launch(cluster, slots(1), name="x", restart="sometimes")
    with pytest.raises(ValueError, match="max_concurrency=0"):
        Echo.create_group().launch(cluster, slots(1), name="x", max_concurrency=0)
    with pytest.raises(RuntimeError, match="launched already"):
        group.launch(cluster)
    with pytest.raises(RuntimeError, match="lives in a process of its own"):
        Echo()


def test_a_group_that_was_not_launched_says_so():
    with pytest.raises(RuntimeError, match="is not running"):
        Echo.create_group().add()


def test_bad_worker_classes_are_refused():
    with pytest.raises(NotImplementedError, match="asynchronous generator"):

        class Streams(Worker):
            async def stream(self):
                yield 1

    class Clash(Worker):
        def execute_on(self):
            pass

    with pytest.raises(ValueError, match="execute_on, which WorkerGroup uses"):
        Clash.create_group()


def test_shutdown_lets_workers_close(cluster, tmp_path):
    group = Closing.create_group(str(tmp_path / "note")).launch(cluster, slots(2), name="closing")
    group.ping().wait()
    cluster.shutdown()
    assert [(tmp_path / f"note.{r}").read_text() for r in range(2)] == ["closed", "closed"]


def test_errors_survive_pickling():
    error = WaitTimeout("a thing", waiter="a:0", seconds=2.0, holders=["b:1"])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.holders) == (str(error), ["b:1"])
