"""Q-functions of policies: several networks that are computed as one."""

from rlinf.models.embodiment.q_heads.ensemble import EnsembleLinear, QEnsemble

__all__ = ["EnsembleLinear", "QEnsemble"]
