"""The page of a profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compilewatch.records.profiles import InferenceProfile, Samples


def render(profile: InferenceProfile, samples: Sequence[Samples]) -> Iterator[tuple[str, bytes]]:
    yield from ()
