"""Checkpoints: what is written, where, and when it counts as complete."""

from rlinf.utils.checkpoint.store import MANIFEST, Checkpoint, CheckpointError, CheckpointStore
from rlinf.utils.checkpoint.tree import load_tree, save_tree

__all__ = [
    "MANIFEST",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "load_tree",
    "save_tree",
]
