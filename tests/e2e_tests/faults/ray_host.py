"""A Ray whose workers are forks of a fork_server: `ray_host.py NURSERY`, until its input is closed.

It prints a line of JSON: the variables of those who join it.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from rlinf.scheduler.cluster.ray_session import RaySession
from tests.fork_server import serving_ray


def _leave_when_closed(started: threading.Event, closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()
    if not started.is_set():
        # Ray waits for workers, and nobody is there any more to fork them.
        os._exit(1)


if __name__ == "__main__":
    started, closed = threading.Event(), threading.Event()
    watch = threading.Thread(target=_leave_when_closed, args=(started, closed), daemon=True)
    watch.start()
    with serving_ray(sys.argv[1]):
        session = RaySession(None, dashboard=False, num_cpus=None, namespace="tests")
    started.set()
    import ray

    variables = {key: value for key, value in os.environ.items() if key.startswith("RAY_")}
    variables["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    print(json.dumps(variables), flush=True)
    closed.wait()
    session.close()
