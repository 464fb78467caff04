"""What can go wrong in an environment, said so that a user knows which one and when."""

from __future__ import annotations


class EnvError(RuntimeError):
    """Something went wrong in a running environment."""


class EnvSlotError(EnvError):
    """The simulator of one slot failed.

    Attributes:
        slot: Index in the vector env; -1 when the simulator has no slots of its own.
        step: Step of the episode in which it failed; 0 is the reset.
        reset_id: Reset state of the episode.
        seed: Seed of the episode.
    """

    def __init__(
        self, message: str, slot: int = -1, step: int = 0, reset_id: int = -1, seed: int = 0
    ) -> None:
        """Keep where it happened."""
        super().__init__(message)
        self.slot, self.step, self.reset_id, self.seed = slot, step, reset_id, seed

    def __reduce__(self) -> tuple:
        """Keep the numbers when the error is sent to another process."""
        return (type(self), (str(self), self.slot, self.step, self.reset_id, self.seed))


class NotFiniteError(EnvSlotError):
    """An observation, a reward or an action is NaN or infinite, or the physics diverged."""


class StateNotSupported(EnvError):
    """A simulator cannot save its state, or cannot go back to one that was saved."""


class MissingSimulator(ImportError):
    """A simulator, or the files that it needs, is not installed; the message says how to get it."""
