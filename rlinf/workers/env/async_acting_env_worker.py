"""The env worker of asynchronous runs whose policy acts in its process."""

from __future__ import annotations

from rlinf.workers.env.acting_env_worker import ActingEnvWorker
from rlinf.workers.rollout.async_policy_holder import AsyncPolicyHolder


class AsyncActingEnvWorker(AsyncPolicyHolder, ActingEnvWorker):
    """Simulates and acts while the next weights arrive."""
