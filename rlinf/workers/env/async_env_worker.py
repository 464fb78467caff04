"""The env worker of asynchronous runs whose policy acts in other processes."""

from __future__ import annotations

from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.async_policy_holder import AsyncCheckpointed


class AsyncEnvWorker(AsyncCheckpointed, EnvWorker):
    """Simulates; says what a rollout took while it plays the next one."""
