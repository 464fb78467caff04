"""The rollout worker of asynchronous runs."""

from __future__ import annotations

from rlinf.workers.rollout.async_policy_holder import AsyncPolicyHolder
from rlinf.workers.rollout.multi_step_rollout_worker import MultiStepRolloutWorker


class AsyncMultiStepRolloutWorker(AsyncPolicyHolder, MultiStepRolloutWorker):
    """Acts while the next weights arrive."""
