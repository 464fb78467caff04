"""Names that come with the package, and the modules that hold their schemas.

When the code of a plug-in moves its schema beside itself, only the module path changes here.
"""

from rlinf.config.plugins import register_lazy, register_schema

_MODULES = {
    "env": {
        "rlinf.envs.metaworld.config": ("metaworld",),
        "rlinf.envs.gymnasium.config": ("gymnasium",),
        "rlinf.envs.envpool.config": ("envpool",),
        "rlinf.envs.maniskill.config": ("maniskill",),
        "rlinf.envs.libero.config": ("libero",),
    },
    "model": {
        "rlinf.models.causal_lm.config": ("qwen2.5", "qwen3", "llama", "hf_causal_lm"),
        "rlinf.models.embodiment.cnn_policy.config": ("cnn_policy",),
        "rlinf.models.embodiment.mlp_policy.config": ("mlp_policy",),
    },
    "reward": {
        "rlinf.config.builtin.rewards": (
            "arithmetic",
            "code",
            "math",
            "reasoning_gym",
            "searchr1",
            "vqa",
        ),
    },
    "dataset": {
        "rlinf.config.builtin.datasets": ("files", "reasoning_gym", "arithmetic"),
    },
}

# All their keys are in the algorithm section itself.
_WITHOUT_KEYS = {
    "advantage": ("gae", "grpo", "reinpp", "raw"),
    "loss": ("actor", "decoupled_actor", "actor_critic", "decoupled_actor_critic"),
}

for _kind, _by_module in _MODULES.items():
    for _module, _names in _by_module.items():
        for _name in _names:
            register_lazy(_kind, _name, _module)

for _kind, _names in _WITHOUT_KEYS.items():
    for _name in _names:
        register_schema(_kind, _name, None)
