"""Q-functions of policies: several networks that are computed as one."""

from rlinf.models.embodiment.q_heads.batch_renorm import CrossQEnsemble, EnsembleBatchRenorm
from rlinf.models.embodiment.q_heads.ensemble import EnsembleLinear, QEnsemble

__all__ = ["CrossQEnsemble", "EnsembleBatchRenorm", "EnsembleLinear", "QEnsemble"]
