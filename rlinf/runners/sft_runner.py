"""The loop of supervised training: that of a run from data, with the loss on held-out episodes."""

from __future__ import annotations

from rlinf.runners.offline_runner import OfflineRunner


class SFTRunner(OfflineRunner):
    """Drives a group of `FSDPVlaSftWorker` through demonstrations; see `OfflineRunner`.

    An evaluation plays in envs, and has the loss on episodes that are not learned from.
    """

    def evaluate(self) -> dict[str, float]:
        """Play the evaluation's episodes; return metrics, the held-out loss among them."""
        return super().evaluate() | self._held_out_loss()

    def final_evaluation(self) -> dict[str, float]:
        """Return the evaluation at the end; see `PlayingRunner.final_evaluation`."""
        return super().final_evaluation() | self._held_out_loss()

    def _held_out_loss(self) -> dict[str, float]:
        if self.cfg.runner.only_eval:
            return {}
        found = self.actor.held_out_loss().wait()[0]
        return {f"eval/{name}": value for name, value in found.items()}
