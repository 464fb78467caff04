"""Going on after a worker has died: end what waits for it, wait until it is back, begin anew.

The three steps of a driver that plays a joint effort of several groups again, after a death or
after `end_process` has ended a worker that hangs:

1. `call_off` ends the calls that cannot be finished any more;
2. `wait_restarted` waits for the ranks that were started anew, which know nothing of their past;
3. `begin_exchange` drops what was on its way, so that the next calls begin with empty hands.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.current import current_runtime
from rlinf.scheduler.deadlines import Deadline
from rlinf.scheduler.errors import WaitTimeout, WorkerDied
from rlinf.scheduler.events import Death
from rlinf.scheduler.worker.backend import NotYet, WorkerLost, WorkerUnavailable
from rlinf.scheduler.worker.group import WorkerGroup
from rlinf.scheduler.worker.handle import WorkerGroupFuncResult, wait_all
from rlinf.scheduler.worker.launched import LaunchedGroup

_GRACE_SECONDS = 60.0
"""How long a call may take to reach a point where it notices that it was called off."""
_RETRY_SECONDS = 0.05


def give_up(*handles: WorkerGroupFuncResult) -> None:
    """Wake who waits for others in these calls; they raise CallCancelled."""
    for group in {id(handle.group): handle.group for handle in handles}.values():
        group.give_up_exchange()


def call_off(*handles: WorkerGroupFuncResult, grace: float = _GRACE_SECONDS) -> list[WorkerDied]:
    """End calls of workers that wait for each other, and return when all have ended.

    Workers notice it when they exchange data with another group the next time. A call that does not
    within the grace is interrupted.

    Args:
        *handles: the calls.
        grace: seconds.

    Returns:
        The workers that died in these calls, in the order of time.

    Raises:
        WaitTimeout: a call could not be ended, not even by force.
    """
    give_up(*handles)
    running = [handle for handle in handles if not handle.ended(grace)]
    for handle in running:
        handle.cancel()
    for handle in running:
        if not handle.ended(grace):
            raise handle.late(2 * grace)
    died = {error.worker: error for handle in handles for error in handle.deaths()}
    order = handles[0].group.supervisor.death_order() if handles else {}
    return sorted(died.values(), key=lambda error: order.get(error.worker, len(order)))


def new_deaths(group: WorkerGroup) -> list[WorkerDied]:
    """Ranks that have died since the group was launched, or since `wait_restarted` saw them."""
    launched = group.launched
    dead = {death.name for death in _unnoticed(launched)}
    explain = launched.supervisor.explain_death
    return [explain(info.name) for info in launched.infos if info.name in dead]


def _unnoticed(group: LaunchedGroup) -> list[Death]:
    """Return the deaths of the processes that the group believes to be its ranks."""
    # Where a process listens is its alone, unlike its name.
    own = {info.life for info in group.infos}
    deaths = group.supervisor.deaths()
    return [death for death in deaths if death.info is not None and death.info.life in own]


def wait_restarted(group: WorkerGroup, timeout: float | None = None) -> list[int]:
    """Wait until all ranks of a group answer again.

    Args:
        group: a group with a restart policy.
        timeout: deadline in seconds; `cluster.timeouts.launch` by default.

    Returns:
        The ranks that were started anew since the group was launched or this was asked last.

    Raises:
        WorkerDied: a rank has died for good.
        WaitTimeout: a rank did not come back within the deadline.
    """
    launched = group.launched
    limit = launched.supervisor.timeout("launch") if timeout is None else timeout
    deadline = Deadline(limit)
    restarted = []
    for rank, known in enumerate(launched.infos):
        info = _info_of(launched, rank, deadline)
        if info.incarnation > known.incarnation:
            restarted.append(rank)
        launched.infos[rank] = info
    return restarted


def _info_of(group: LaunchedGroup, rank: int, deadline: Deadline) -> Any:
    while True:
        if deadline.passed():
            raise group.late("__init__", [rank], deadline.seconds)
        try:
            asked = group.actors[rank].rlinf_info.remote()
            return group.backend.get([asked], deadline.left())[0]
        except WorkerUnavailable:
            # Between two lives. Ray tells nobody when the next one begins.
            time.sleep(_RETRY_SECONDS)
        except NotYet:
            continue
        except WorkerLost as error:
            raise group.supervisor.explain_death(group.name_of(rank), str(error)) from None


def responds(group: WorkerGroup, rank: int, timeout: float) -> bool:
    """Return whether the process of a rank runs, also one that is busy; not for event loops.

    Args:
        group: the group.
        rank: the rank.
        timeout: seconds that its I/O thread may take to answer.
    """
    info = group.launched.infos[rank]
    what = f"{info.name} to answer the registry"
    asked = {"worker": info.name, "life": info.life, "timeout": timeout, "what": what}
    try:
        return bool(current_runtime().registry.ask("responds", **asked))
    except WaitTimeout:
        return False


def registered_info(group: WorkerGroup, rank: int, timeout: float) -> WorkerInfo:
    """Return what the registry knows of the process that is now a rank, also if it hangs.

    Args:
        group: the group.
        rank: the rank.
        timeout: seconds.

    Raises:
        ConnectionError: the worker has died.
        WaitTimeout: the registry does not answer, or the worker has yet to be started anew.
    """
    name = group.launched.name_of(rank)
    what = f"the registry to say where {name} is"
    return current_runtime().registry.ask("lookup", worker=name, timeout=timeout, what=what)


def end_process(group: WorkerGroup, rank: int) -> None:
    """End the process of a rank that hangs; it is started anew if its group has restarts left.

    Args:
        group: the group.
        rank: the rank; if its worker lives in this very process, nothing happens.
    """
    launched = group.launched
    info = launched.infos[rank]
    if info.cluster_node_rank != current_runtime().node_rank:
        launched.backend.end([launched.actors[rank]], for_good=False)
    elif info.pid != os.getpid():
        # Ray asks a process to end, and one that has been stopped does not hear it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(info.pid, signal.SIGKILL)


def begin_exchange(*groups: WorkerGroup) -> None:
    """Drop all that these groups have sent each other by `send_to` or `broadcast` and did not take.

    All groups that exchange data with one of them have to be named, and none of them may be in a
    call. What failed before counts as dealt with, unless a rank has died that `wait_restarted` has
    not seen.
    """
    launched = [group.launched for group in groups]
    if not launched:
        return
    # All groups of a process have the same supervisor.
    supervisor, begin = launched[0].supervisor, time.time()
    supervisor.exchange += 1
    calls = [group.begin_exchange(supervisor.exchange) for group in launched]
    # A plain call may take as long as it likes; this one has nothing to do.
    wait_all(*calls, timeout=supervisor.timeout("launch"))
    again = [death.time for group in launched for death in _unnoticed(group)]
    supervisor.note_recovery(min([begin, *again]))
