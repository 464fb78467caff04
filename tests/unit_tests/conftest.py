"""How Hypothesis tests here: the same examples each time, and no limit on how long one may take."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A machine that is busy with other things is no failure; nor is one a new failure of old code.
settings.register_profile(
    "rlinf",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rlinf")
