"""Profiling servers that outlive whoever started them, so that tests share an import of torch."""

from collections.abc import Sequence
from typing import ClassVar

from compilewatch.contract.targets import CPU
from compilewatch.environments import Environments
from compilewatch.extras.profiles.subjects import Profilers, environment_of


class WarmProfilers(Profilers):
    """The first to profile in an environment starts its server, for eager mode and Inductor."""

    _kept: ClassVar[dict[tuple[str, Environments, str], Profilers]] = {}

    def __init__(
        self, targets: Sequence[str], environments: Environments, device: str = CPU
    ) -> None:
        self.servers = {}
        for target in targets:
            key = (environment_of(target), environments, device)
            if key not in self._kept:
                self._kept[key] = Profilers((target, f"inductor@{key[0]}"), environments, device)
            self.servers |= self._kept[key].servers

    def __exit__(self, *_: object) -> None:
        """The servers stay."""

    @classmethod
    def close_all(cls) -> None:
        for profilers in cls._kept.values():
            profilers.__exit__()
        cls._kept.clear()
