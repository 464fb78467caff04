"""Acting while weights arrive: the mixins of workers of asynchronous runs."""

from __future__ import annotations

import asyncio

from rlinf.workers.checkpointed import Checkpointed
from rlinf.workers.rollout.policy_holder import PolicyHolder


class AsyncCheckpointed(Checkpointed):
    """Answers some calls while a rollout goes on.

    Plain methods of a worker with coroutines run in one thread, in the order of their calls: so do
    rollouts that were asked for ahead, and what must not happen in the middle of one. Coroutines
    run beside it, and so does what the driver asks of the process itself, such as its timers.
    """

    async def checkpoint_written(self, folder: str, wait: bool = False) -> bool:
        """Return whether the part of this worker is on the disk; see `Checkpointed`."""
        return await asyncio.to_thread(Checkpointed.checkpoint_written, self, folder, wait)


class AsyncPolicyHolder(PolicyHolder, AsyncCheckpointed):
    """Receives weights, and is told to end a rollout, while the rollout goes on."""

    async def sync_model_from_actor(self) -> int:
        """Receive weights, which are taken up between two chunks; return their version."""
        return await asyncio.to_thread(self._staged.receive, self._receiver)

    _cut_number: int | None = None

    async def cut_rollout(self, number: int) -> None:
        """End a rollout after the chunk under way, unless it has ended; others wait for it."""
        self._cut_number = number

    def _is_cut(self) -> bool:
        return self._cut_number == self._rollout_number
