"""Groups of task types that several places treat alike."""

OFFLINE = ("offline", "sft")
"""Tasks that train a policy on datasets; it acts in envs only to be evaluated."""
FROM_DATA = (*OFFLINE, "reward_model")
"""Tasks that learn from datasets."""
