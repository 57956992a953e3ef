"""Hypothesis profiles: the default keeps `make test` short; `thorough` is for a changed core."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", max_examples=40, deadline=None, derandomize=True)
settings.register_profile(
    "thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
