"""What adapters of MuJoCo simulators share."""

from __future__ import annotations

from typing import Any

import mujoco

DIVERGED = "the physics diverged (MuJoCo met a NaN or a huge value and quietly began anew)"
"""What to say when `physics_diverged`."""

_WARNINGS = (
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
)


def physics_diverged(data: Any) -> bool:
    """Tell whether MuJoCo met a NaN since the last reset; by itself it goes on in silence."""
    numbers = data.warning.number
    return any(numbers[warning] for warning in _WARNINGS)
