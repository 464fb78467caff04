"""The actor of supervised training: one that also says how it does on data it has not seen."""

from __future__ import annotations

from rlinf.scheduler import Worker
from rlinf.workers.actor.embodied_fsdp_actor import EmbodiedFSDPActor


class FSDPVlaSftWorker(EmbodiedFSDPActor):
    """Trains a policy on demonstrations."""

    @Worker.timer("held_out_loss")
    def held_out_loss(self) -> dict[str, float]:
        """Return the loss on held-out episodes; see `BehaviourCloningLearner.held_out_loss`."""
        found = self.learner.held_out_loss()
        self._offload()
        return found
