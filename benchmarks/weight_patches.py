"""Size and speed of the differences that `weight_syncer.type: patch` sends.

Usage, from the root of the repository:

    python -m benchmarks.weight_patches

Weights are normal with a deviation of 0.02, and an update moves each by the learning rate, up or
down, which is what Adam does in its first steps. One thread makes and applies the patch.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.harness import describe_machine

RATES = (1e-7, 1e-6, 1e-5, 1e-4)


def rows(numbers: int) -> list[str]:
    """Measure; return the rows of a table of Markdown.

    Args:
        numbers: of the tensor.
    """
    import torch

    from rlinf.hybrid_engines.weight_sync.patches import difference, patched

    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = torch.randn(numbers).mul_(0.02)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for rate in RATES:
            later = weights + rate * torch.randn_like(weights).sign()
            old, new = weights.to(dtype), later.to(dtype)
            begin = time.perf_counter()
            patch = difference(old, new)
            made = time.perf_counter()
            if patch is not None and not torch.equal(patched(old, patch), new):
                raise RuntimeError("a patch does not give the new weights")
            applied = time.perf_counter()
            size = new.nbytes if patch is None else patch.nbytes
            speeds = [new.nbytes / 1e6 / seconds for seconds in (made - begin, applied - made)]
            facts = [f"{(old != new).double().mean():.1%}", f"{size / new.nbytes:.1%}"]
            facts += [f"{speed:,.0f}" for speed in speeds]
            name = str(dtype).removeprefix("torch.")
            found.append(f"| {name} | {rate:g} | {' | '.join(facts)} |")
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=32 << 20)
    options = parser.parse_args()
    print(describe_machine())
    print("| format | learning rate | changed | size | making (MB/s) | applying (MB/s) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(rows(options.numbers)))


if __name__ == "__main__":
    main()
