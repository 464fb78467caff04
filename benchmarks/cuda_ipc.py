"""Measure the hand-over of a CUDA tensor between two processes on one GPU by CUDA IPC.

Usage: ``python benchmarks/cuda_ipc.py --gigabytes 2 --repeat 20``. Prints the latency of the
hand-over (export, message, open) and the rate of hand-over plus the copy on the device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from multiprocessing.connection import Connection

import torch
import torch.multiprocessing as mp

from rlinf.scheduler.collective.cuda_ipc import CudaExporter, import_tensor


def receive(pipe: Connection, device: int) -> None:
    """Copy each tensor that comes into memory of this process and answer with the times."""
    torch.cuda.set_device(device)
    own = None
    while (message := pipe.recv()) is not None:
        started, token = message
        source = import_tensor(token, clone=False)
        opened = time.perf_counter()
        own = torch.empty_like(source) if own is None else own
        own.copy_(source)
        torch.cuda.synchronize()
        copied = time.perf_counter()
        del source
        pipe.send((token.id, opened - started, copied - started, float(own[0]), float(own[-1])))


def main() -> None:
    """Run the sender and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for an answer")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "cuda_ipc: this benchmark needs a CUDA device\n")

    torch.cuda.set_device(args.device)
    context = mp.get_context("spawn")
    pipe, other = context.Pipe()
    reader = context.Process(target=receive, args=(other, args.device), daemon=True)
    reader.start()
    other.close()

    exporter = CudaExporter()
    tensor = torch.empty(int(args.gigabytes * 1e9) // 4, dtype=torch.float32, device="cuda")
    handovers, totals = [], []
    for step in range(args.warmup + args.repeat):
        tensor.fill_(step)
        torch.cuda.synchronize()
        started = time.perf_counter()  # CLOCK_MONOTONIC: the same in both processes
        pipe.send((started, exporter.export(tensor, "reader")))
        if not pipe.poll(args.timeout):
            raise TimeoutError(f"the reader did not answer within {args.timeout} s")
        token_id, handover, total, first, last = pipe.recv()
        exporter.release(token_id)
        if (first, last) != (step, step):
            raise RuntimeError(f"step {step} arrived as {first} .. {last}")
        if step >= args.warmup:
            handovers.append(handover)
            totals.append(total)
    pipe.send(None)
    reader.join(args.timeout)

    local = torch.empty_like(tensor)
    copies = []
    for _ in range(args.repeat):
        torch.cuda.synchronize()
        started = time.perf_counter()
        local.copy_(tensor)
        torch.cuda.synchronize()
        copies.append(time.perf_counter() - started)

    def rate(seconds: list[float]) -> float:
        return tensor.nbytes / statistics.median(seconds) / 1e9

    print(f"{torch.cuda.get_device_name(args.device)}, torch {torch.__version__}")
    print(f"tensor                  {tensor.nbytes / 1e9:.2f} GB, {args.repeat} times, medians")
    print(f"hand-over latency       {statistics.median(handovers) * 1e6:.0f} us")
    print(f"hand-over + device copy {rate(totals):.0f} GB/s (worst {rate([max(totals)]):.0f})")
    print(f"device copy alone       {rate(copies):.0f} GB/s")


if __name__ == "__main__":
    main()
