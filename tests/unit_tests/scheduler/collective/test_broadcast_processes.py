"""Broadcasts by link between processes: over gloo, and over NCCL where there is a GPU.

NCCL refuses two ranks on one GPU of one host. With a host id of its own for each process it
connects them by sockets, as it would several machines.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf.scheduler import WorkerDied
from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.worker.runtime import ProcessRuntime
from tests.unit_tests.scheduler.comm_workers import equal
from tests.unit_tests.scheduler.small_run import SmallRun
from tests.unit_tests.scheduler.transfer_end import end_in_transfer
from tests.unit_tests.scheduler.waits import PROMPTLY

SLOWLY = 6 * PROMPTLY
"""Seconds for processes to start."""

SOURCE, SAME, ONE, TWO, BARE = "source:0", "same:0", "one:0", "two:0", "bare:0"
GPUS = {SOURCE: [0], SAME: [0], ONE: [1], TWO: [2], BARE: []}
"""What each process believes to have; in truth it is always the same GPU."""

backends = pytest.mark.parametrize(
    "backend",
    [
        "gloo",
        pytest.param(
            "nccl",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)


def groups_of(names: list[str]) -> list[tuple[str, list[int]]]:
    return [(name.partition(":")[0], [0]) for name in names]


def join(name: str, spec: Any) -> ProcessRuntime:
    """Become a member of a run."""
    runtime = ProcessRuntime(name, spec, 0, ["127.0.0.1"], GPUS[name])
    info = WorkerInfo(
        WorkerAddress.from_name(name),
        rank=0,
        group_world_size=1,
        pid=os.getpid(),
        accelerator_type="NV_GPU" if GPUS[name] else "NO_ACCEL",
        available_accelerators=GPUS[name],
        endpoints=runtime.endpoint.addresses,
        memory_domain=runtime.endpoint.domain,
    )
    runtime.registry.ask("register", info=info)
    return runtime


def nest(seed: int, device: str) -> dict[str, Any]:
    base = torch.arange(300 * 400, dtype=torch.float32, device=device).view(300, 400) + seed
    return {
        "plain": base,
        "view": base.T[3:, ::2],
        "bf16": base.bfloat16(),
        "bool": base > 1000,
        "parameter": torch.nn.Parameter(base.double()),
        "small": base[0, :5],
        "text": f"nest {seed}",
    }


def on_host(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu() if isinstance(v, torch.Tensor) else v for k, v in found.items()}


def one_to_all(name: str, runtime: ProcessRuntime, device: str) -> list[bool]:
    """Take part in broadcasts of one process, which do not wait for each other."""
    groups, results = groups_of(list(GPUS)), []
    for seed in range(4):
        obj = nest(seed, device) if name == SOURCE else None
        work = runtime.broadcaster.broadcast(obj, groups, ("source", 0))
        results.append(work)
    expected = [on_host(nest(seed, "cpu")) for seed in range(4)]
    return [equal(on_host(w.wait()), e) for w, e in zip(results, expected, strict=True)]


def all_to_all(name: str, runtime: ProcessRuntime, device: str) -> list[bool]:
    """Broadcast to the others, which do so as well, and send to each of them in between."""
    names = [SOURCE, ONE, TWO]
    if name not in names:
        return []
    groups, others = groups_of(names), [other for other in names if other != name]
    broadcast, mailbox = runtime.broadcaster.broadcast, runtime.mailbox
    own = (name.partition(":")[0], 0)
    works, ok = [], []
    for seed in range(6):
        works.append(broadcast(nest(seed, device), groups, own))
        works += [mailbox.send(other, nest(seed + 50, device), keep=False) for other in others]
    for seed in range(6):
        for other in others:
            taken = broadcast(None, groups, (other.partition(":")[0], 0)).wait()
            ok.append(equal(on_host(taken), on_host(nest(seed, "cpu"))))
            sent = mailbox.recv(other).wait()
            ok.append(equal(on_host(sent), on_host(nest(seed + 50, "cpu"))))
    for work in works:
        work.wait()
    return ok


def dying(victim: str) -> Callable[..., Any]:
    return {ONE: one_dies, SOURCE: source_dies}[victim]


def one_dies(name: str, runtime: ProcessRuntime, device: str) -> str:
    return die_in_transfer(name, runtime, device, ONE)


def source_dies(name: str, runtime: ProcessRuntime, device: str) -> str:
    return die_in_transfer(name, runtime, device, SOURCE)


def die_in_transfer(name: str, runtime: ProcessRuntime, device: str, victim: str) -> str:
    """Broadcast once, then again with a process that ends when that has begun."""
    names = [SOURCE, ONE, TWO]
    if name not in names:
        return ""
    groups = groups_of(names)
    big = torch.ones(1 << 25, device=device) if name == SOURCE else None
    if name == victim:
        end_in_transfer(1)
    runtime.broadcaster.broadcast(big, groups, ("source", 0)).wait()
    try:
        runtime.broadcaster.broadcast(big, groups, ("source", 0)).wait(PROMPTLY)
    except WorkerDied as error:
        message = str(error).splitlines()[0]
    else:
        return "no error"
    left = [n for n in names if n != victim]
    again = torch.full((1 << 20,), 2.0, device=device) if name == left[0] else None
    source = (left[0].partition(":")[0], 0)
    taken = runtime.broadcaster.broadcast(again, groups_of(left), source).wait(PROMPTLY)
    return f"{message}; then {float(taken.sum() / len(taken)):g}"


def be(name: str, spec: Any, backend: str, scenario: Callable[..., Any], results: Any) -> None:
    """Be one process."""
    os.environ.update(RLINF_DEVICE_LINK=backend, ACCELERATOR_TYPE="NV_GPU")
    device = "cpu"
    if backend == "nccl":
        os.environ.update(NCCL_HOSTID=name, NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
        torch.cuda.init()
        device = "cuda"
    runtime = join(name, spec)
    found = scenario(name, runtime, device)
    results.send(found)
    # The others may still need this one.
    results.recv()
    runtime.close()


def play(
    tmp_path: Path, backend: str, scenario: Callable[..., Any], names: list[str]
) -> dict[str, Any]:
    """Results of all processes by name, None for one that died."""
    run = SmallRun(tmp_path)
    # Loads torch once, and does not touch the GPU.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    processes, pipes, found = [], {}, {}
    try:
        for name in names:
            pipes[name], theirs = context.Pipe()
            args = (name, run._spec, backend, scenario, theirs)
            processes.append(context.Process(target=be, args=args))
            processes[-1].start()
            theirs.close()
        for name, pipe in pipes.items():
            try:
                found[name] = pipe.recv() if pipe.poll(SLOWLY) else "nothing came"
            except EOFError:
                found[name] = None
        for name, pipe in pipes.items():
            if found[name] not in (None, "nothing came"):
                pipe.send("done")
        for process in processes:
            process.join(PROMPTLY)
    finally:
        for process in processes:
            process.kill()
        run.close()
    return found


@backends
def test_receivers_of_all_kinds_get_the_same(tmp_path, backend):
    found = play(tmp_path, backend, one_to_all, list(GPUS))
    assert found == {name: [True] * 4 for name in GPUS}


@backends
def test_all_broadcast_and_send_at_once(tmp_path, backend):
    names = [SOURCE, ONE, TWO]
    found = play(tmp_path, backend, all_to_all, names)
    assert found == {name: [True] * 24 for name in names}


@backends
@pytest.mark.parametrize("victim", [ONE, SOURCE])
def test_a_death_in_the_middle_fails_all_others_and_names_the_dead(tmp_path, backend, victim):
    names = [SOURCE, ONE, TWO]
    found = play(tmp_path, backend, dying(victim), names)
    assert found.pop(victim) is None
    for message in found.values():
        assert message.startswith(f"worker {victim}") and message.endswith("then 2"), message
