"""Folders with a policy that load without this package: weights, settings, and the code to run it.

`rlinf_policy.py` and `modeling_rlinf_policy.py` are copied into these folders as they are, so they
import nothing of this package.
"""

from __future__ import annotations

from rlinf.models.export.folder import FORMATS, PolicyExport, write_export

__all__ = ["FORMATS", "PolicyExport", "write_export"]
