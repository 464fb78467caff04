"""What RLinf imports in every process: importing these modules registers env and policy."""

from . import env, policy

__all__ = ["env", "policy"]
