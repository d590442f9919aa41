"""Publishing a profile that was made on its own."""

from __future__ import annotations

from compilewatch.config import Settings
from compilewatch.extras.profiles.infer.metrics import DEFINITIONS, of_profiles
from compilewatch.extras.profiles.infer.records import InferenceProfile
from compilewatch.sinks.prometheus import registry
from compilewatch.sinks.pushgateway import JOB, Gateway

PROFILE_SOURCE = "profile"
"""The source of models that were profiled on their own, with one group for each model."""


def push_profile(settings: Settings, profile: InferenceProfile) -> str:
    """Replace the group of a model that was profiled on its own. Raises SinkError."""
    gateway = Gateway(settings)
    # Runs have other sources, so that neither replaces the other.
    samples = [
        (name, (PROFILE_SOURCE, *labels), value) for name, labels, value in of_profiles([profile])
    ]
    key = {"source": PROFILE_SOURCE, "model": profile.model}
    gateway.replace(JOB, key, registry(samples, DEFINITIONS))
    return f"pushgateway: {len(samples):,} series of {profile.model} at {gateway.address}"
