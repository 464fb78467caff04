"""Names that come with the package, and the modules that register their schemas.

When the code of a plug-in moves its schema beside itself, only the module path changes here.
"""

MODULES = {
    "env": {
        "rlinf.envs.metaworld.config": ("metaworld",),
        "rlinf.envs.gymnasium.config": ("gymnasium",),
        "rlinf.envs.envpool.config": ("envpool",),
        "rlinf.envs.maniskill.config": ("maniskill",),
        "rlinf.envs.libero.config": ("libero",),
        "rlinf.envs.navigation.config": ("navigation",),
    },
    "model": {
        "rlinf.models.causal_lm.config": ("qwen2.5", "qwen3", "llama", "hf_causal_lm"),
        "rlinf.models.embodiment.cma.config": ("cma",),
        "rlinf.models.embodiment.cnn_policy.config": ("cnn_policy",),
        "rlinf.models.embodiment.flow_policy.config": ("flow_policy",),
        "rlinf.models.embodiment.flow_vla.config": ("smolvla", "openpi", "gr00t"),
        "rlinf.models.embodiment.mlp_policy.config": ("mlp_policy",),
        "rlinf.models.embodiment.openvla.config": ("openvla", "openvla_oft"),
        "rlinf.models.embodiment.reward_model.config": ("mlp_reward_model", "cnn_reward_model"),
    },
    "reward": {
        "rlinf.config.builtin.rewards": (
            "arithmetic",
            "code",
            "code_completion",
            "math",
            "reasoning_gym",
            "searchr1",
            "vqa",
        ),
    },
    "loss": {
        "rlinf.workers.actor.imitation.config": ("embodied_bc",),
        "rlinf.workers.actor.offline.config": ("offline_iql",),
        "rlinf.workers.actor.reward_model.config": ("reward_model",),
        "rlinf.config.schema.dagger": ("embodied_dagger",),
        "rlinf.config.schema.nft": ("embodied_nft",),
        "rlinf.config.schema.off_policy": (
            "embodied_crossq",
            "embodied_sac",
            "embodied_td3",
        ),
    },
    "start_sampler": {
        "rlinf.envs.start_samplers.weighted": ("weighted",),
        "rlinf.envs.start_samplers.failure_rate": ("failure_rate", "learnability"),
    },
    "dataset": {
        "rlinf.config.builtin.datasets": (
            "files",
            "reasoning_gym",
            "arithmetic",
            "calculations",
            "facts",
            "programs",
            "verifiers",
            "wide_questions",
            "one_liners",
        ),
    },
    "agent_loop": {
        "rlinf.config.builtin.agent_loops": ("env", "attempts", "verifiers", "team"),
    },
}

WITHOUT_KEYS = {
    "advantage": ("gae", "grpo", "reinpp", "raw", "embodied_sac"),
    "loss": ("actor", "decoupled_actor", "actor_critic", "decoupled_actor_critic"),
    "start_sampler": ("uniform",),
    "agent_loop": ("single_turn", "tools"),
    "text_env": ("guess_number", "rooms"),
    "tool": ("calculator", "lookup", "python", "search"),
    "tool_parser": ("llama_json", "qwen", "searchr1"),
}
"""Names that add no keys to their section."""
