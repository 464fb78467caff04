"""Keys that reward models add to their model section."""

from __future__ import annotations

from rlinf.config.plugins import register_schema
from rlinf.models.embodiment.network_keys import ImageNetworkKeys, StateNetworkKeys


class MLPRewardModelKeys(StateNetworkKeys):
    """Keys of the reward model on state vectors."""


class CNNRewardModelKeys(ImageNetworkKeys, StateNetworkKeys):
    """Keys of the reward model on images and state."""


register_schema("model", "mlp_reward_model", MLPRewardModelKeys)
register_schema("model", "cnn_reward_model", CNNRewardModelKeys)
