"""Profiling servers that outlive whoever started them, so that tests share an import of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from compilewatch.contract.targets import CPU
from compilewatch.environments import Environments
from compilewatch.extras.profiles.measurement import (
    Profilers,
    ProfileServerClient,
    environment_of,
)


class WarmProfilers(Profilers):
    """Profiling servers that outlive the command which started them."""

    _kept: ClassVar[dict[tuple[str, Environments, str], ProfileServerClient]] = {}

    def __init__(
        self, targets: Sequence[str], environments: Environments, device: str = CPU
    ) -> None:
        super().__init__((), environments, device)
        for target in targets:
            name = environment_of(target)
            key = (name, environments, device)
            if key not in self._kept:
                self._kept[key] = ProfileServerClient(name, ("inductor",), environments, device)
            self._of[name] = self._kept[key]

    @classmethod
    def close_all(cls) -> None:
        for profiler in cls._kept.values():
            profiler.__exit__()
        cls._kept.clear()
