"""Policies and language models behind one table of model types.

Importing this package loads no torch: the config check reads the schemas that lie beside the
models.
"""

from rlinf.models.registry import get_model, register_model

__all__ = ["get_model", "register_model"]
