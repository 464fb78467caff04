"""The contestant's side of a benchmark: commands come as JSON lines on stdin, answers go to stdout.

It stands alone, because a contestant runs with an interpreter that may know nothing of this
repository.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def serve(contestant: Any) -> None:
    """Answer commands until stdin ends.

    A command `{"do": "noop", "calls": 100}` calls `contestant.noop(calls=100)`; the answer is
    `{"value": ...}`, or `{"error": ...}` with the traceback. Call this before anything is imported
    that prints or starts processes: what they write goes to stderr from here on.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"value": getattr(contestant, command.pop("do"))(**command)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
