"""Who is told of an end: those concerned, whenever they ask, and nobody else."""

from __future__ import annotations

import pytest

from rlinf.scheduler import WorkerDied
from tests.unit_tests.scheduler.small_run import in_thread
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


def leave(run, member) -> None:
    """Let a member end on purpose, as one of a group that is closed."""
    member.registry.ask("expect_exit", names=[member.name])
    run._members.remove(member)
    member.close()
    wait_until(lambda: member.name not in run.server._members)


def has_heard_all(member) -> bool:
    """Return once a member has taken in all that the registry has sent it so far."""
    return member.registry.ask("groups") is not None


def test_a_death_is_told_to_those_concerned_only(small_run):
    dies, sends, receives, waits, stranger = (
        small_run.join(f"{name}:0") for name in ("dies", "sends", "receives", "waits", "stranger")
    )
    sends.mailbox.send("dies:0", "hello").wait()
    dies.mailbox.send("receives:0", "hello").wait()
    waiting = waits.mailbox.recv("dies:0")
    has_heard_all(waits)
    small_run.kill(dies)
    with pytest.raises(WorkerDied, match="dies:0"):
        in_thread(waiting.wait).wait()
    for member in (sends, receives, waits):
        wait_until(lambda member=member: "dies:0" in member.registry.dead)
    assert has_heard_all(stranger) and "dies:0" not in stranger.registry.dead


def test_who_asks_for_a_peer_that_has_died_meanwhile_is_told(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    small_run.kill(there)
    assert has_heard_all(here) and "there:0" not in here.registry.dead
    with pytest.raises(WorkerDied, match="there:0"):
        in_thread(here.mailbox.recv("there:0").wait).wait()


def test_who_asks_for_a_peer_that_has_left_meanwhile_is_told(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    leave(small_run, there)
    with pytest.raises(WorkerDied, match="its group was closed"):
        in_thread(here.mailbox.recv("there:0").wait).wait()
    # Another group of the name may come.
    there = small_run.join("there:0")
    there.mailbox.send("here:0", "hello").wait()
    assert in_thread(lambda: here.mailbox.recv("there:0").wait(PROMPTLY)).wait() == "hello"
    waiting = here.mailbox.recv("there:0")
    has_heard_all(here)
    small_run.kill(there)
    with pytest.raises(WorkerDied, match="there:0"):
        in_thread(waiting.wait).wait()


@pytest.mark.parametrize("end", ["dies", "leaves"])
def test_who_joins_after_an_end_waits_for_the_next_one_of_the_name(small_run, end):
    there = small_run.join("there:0")
    small_run.kill(there) if end == "dies" else leave(small_run, there)
    here = small_run.join("here:0")
    waiting = here.mailbox.recv("there:0")
    assert has_heard_all(here) and not waiting.done()
    small_run.join("there:0").mailbox.send("here:0", "back").wait()
    assert in_thread(lambda: waiting.wait(PROMPTLY)).wait() == "back"


def test_each_end_of_a_name_is_told(small_run):
    here = small_run.join("here:0")
    for number in range(3):
        there = small_run.join("there:0")
        waiting = here.mailbox.recv("there:0")
        has_heard_all(here)
        small_run.kill(there)
        with pytest.raises(WorkerDied, match="there:0"):
            in_thread(waiting.wait).wait()
        assert len(small_run.server.deaths_of("there:0")) == number + 1
        here.registry.dead.clear()


def test_who_depends_on_a_process_that_has_been_replaced_is_told(small_run):
    here, first = small_run.join("here:0"), small_run.join("there:0")
    life = first.endpoint._life
    small_run.kill(first)
    small_run.join("there:0")
    here.registry.watch("there:0", life=life)
    assert has_heard_all(here) and here.registry.dead["there:0"].info.life == life


def test_the_answer_that_a_peer_does_not_live_comes_after_word_of_its_end(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    small_run.kill(there)
    life = there.endpoint._life
    assert here.registry.ask("responds", worker="there:0", life=life) is False
    assert "there:0" in here.registry.dead


def test_an_end_is_told_once(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    here.mailbox.send("there:0", "hello").wait()
    told = []
    here.registry.on_leave(lambda name, info: told.append(name))
    leave(small_run, there)
    here.registry.watch("there:0")
    here.registry.ask("responds", worker="there:0", life=there.endpoint._life)
    assert has_heard_all(here) and told == ["there:0"]


def test_the_registry_forgets_who_was_told_of_what(small_run):
    server = small_run.server
    here = small_run.join("here:0")
    for number in range(3):
        there = small_run.join(f"there{number}:0")
        here.mailbox.send(there.name, "hello").wait()
        leave(small_run, there)
        # It may find out for itself, by a connection that ended.
        life = there.endpoint._life
        assert here.registry.ask("responds", worker=there.name, life=life) is False
    assert not server._watches._watchers and not server._watches._watched


def test_a_member_can_be_told_of_all_deaths(small_run):
    driver, worker = small_run.join("driver:0"), small_run.join("worker:0")
    driver.registry.notify("watch_all")
    has_heard_all(driver)
    small_run.kill(worker)
    assert "worker:0" in driver.registry.dead
