"""A policy that was trained with RLinf, for transformers.

`AutoModel.from_pretrained(FOLDER, trust_remote_code=True)` returns a module that maps observations
to the most likely actions.
"""

from transformers import PretrainedConfig, PreTrainedModel

from .rlinf_policy import PolicyLayers

SIZES = (
    "obs_dim",
    "action_dim",
    "action_low",
    "action_high",
    "action_choices",
    "distribution",
    "image_channels",
)


class RLinfPolicyConfig(PretrainedConfig):
    """What `config.json` says."""

    model_type = "rlinf_policy"

    def __init__(self, architecture="mlp_policy", settings=None, **kwargs):
        """Keep the architecture and its settings; sizes and ranges are among the others."""
        self.architecture = architecture
        self.settings = settings or {}
        for name in SIZES:
            setattr(self, name, kwargs.pop(name, None))
        super().__init__(**kwargs)


class RLinfPolicyModel(PolicyLayers, PreTrainedModel):
    """A policy."""

    config_class = RLinfPolicyConfig
    base_model_prefix = ""
    main_input_name = "states"

    def __init__(self, config):
        """Make the layers that the config describes."""
        super().__init__(config)
        self.build(config.to_dict())
        self.post_init()

    def _init_weights(self, module):
        """All weights are in the file: there is nothing to begin with."""
