"""Groups of task types that several places treat alike."""

FROM_DATA = ("offline", "sft")
"""Tasks that learn from datasets; their policies act in envs only to be evaluated."""
