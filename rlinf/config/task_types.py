"""Groups of task types that several places treat alike."""

LANGUAGE = ("reasoning", "agent", "coding_online_rl")
"""Tasks that train a language model on what it generates."""
GENERATING = (*LANGUAGE, "reasoning_eval")
"""Tasks in which a language model generates."""
OFFLINE = ("offline", "sft")
"""Tasks that train a policy on datasets; it acts in envs only to be evaluated."""
FROM_DATA = (*OFFLINE, "reward_model")
"""Tasks that learn from datasets."""
