"""Checkpoints: what is written, where, and when it counts as complete."""

from rlinf.utils.checkpoint.manifest import MANIFEST, CheckpointError
from rlinf.utils.checkpoint.store import Checkpoint, CheckpointStore
from rlinf.utils.checkpoint.tree import load_tree, save_tree

__all__ = [
    "MANIFEST",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "load_tree",
    "save_tree",
]
