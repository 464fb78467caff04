"""`rlinf doctor`: look at this machine and say what would break a run, and how to mend it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlinf.cli.health.finding import Finding

_COLOURS = {"ok": "\033[32m", "warn": "\033[33m", "fail": "\033[31m"}
_PLAIN = "\033[0m"


def add_parser(commands: Any) -> None:
    """Add `doctor` to the sub-commands."""
    parser = commands.add_parser(
        "doctor",
        help="look at this machine and say what to mend",
        description="Check Python, packages, GPU, rendering, shared memory, ports and Ray of this "
        "machine, and whether other users can read what is yours. Every finding that is not ok "
        "comes with its fix. Exit code 1 if one failed.",
    )
    parser.add_argument(
        "--log-dir", default="logs", help="where runs write, to check its disk (default: logs)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print all findings.

    Returns:
        0, or 1 if something failed.
    """
    findings = []
    for finding in examine(Path(args.log_dir)):
        findings.append(finding)
        if not args.json:
            print(format_finding(finding, sys.stdout.isatty()), flush=True)
    failed = sum(finding.status == "fail" for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    if args.json:
        report = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2))
    elif failed or warned:
        print(f"\n{failed} failed, {warned} to look at")
    else:
        print("\nall is well")
    return 1 if failed else 0


def examine(log_dir: Path) -> Iterable[Finding]:
    """Run every check, one after the other.

    Args:
        log_dir: Where runs write.
    """
    from rlinf.cli.health import (
        hardware,
        identity,
        packages,
        private_files,
        processes,
        python_env,
        rendering,
    )

    yield python_env.check_python()
    yield python_env.check_environment()
    yield python_env.check_python_path()
    yield from identity.check_identity()
    yield from packages.check_packages()
    yield from packages.check_mujoco()
    gpus, error = hardware.query_gpus()
    yield packages.check_torch(gpus=len(gpus))
    yield hardware.check_gpu(gpus, error)
    yield from rendering.check_rendering()
    yield hardware.check_cores()
    yield hardware.check_memory()
    yield hardware.check_shared_memory()
    yield hardware.check_disk(log_dir)
    yield processes.check_ports()
    yield processes.check_file_limit()
    yield from processes.check_ray()
    yield from private_files.check_private_files(log_dir)


def format_finding(finding: Finding, colour: bool = False) -> str:
    """Write a finding as one line, with its fix on a second one.

    Args:
        finding: What was found.
        colour: Whether to colour the status.
    """
    status = f"{finding.status:<4}"
    if colour:
        status = f"{_COLOURS[finding.status]}{status}{_PLAIN}"
    line = f"{status}  {finding.name:<18}  {finding.found}"
    return f"{line}\n{'':<24}  fix: {finding.fix}" if finding.fix else line
