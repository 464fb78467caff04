"""Keys that `mlp_policy` adds to its model section."""

from __future__ import annotations

from rlinf.config.plugins import register_schema
from rlinf.models.embodiment.network_keys import ActorCriticKeys


class MLPPolicyKeys(ActorCriticKeys):
    """Keys of the policy on state vectors."""


register_schema("model", "mlp_policy", MLPPolicyKeys)
