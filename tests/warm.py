"""Worker servers that outlive whoever started them: an import of torch is shared by many tests."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from compilewatch.contract.targets import TARGETS
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.launchers.peer import ServerProcess
from compilewatch.records import DeclaredDevice

Key = tuple[str, str, DeclaredDevice | None, bool]


class WarmLauncher(LocalLauncher):
    """Leaving it ends no server: the next launcher in this process that wants the same has it.

    The first to start a server imports what all targets of its environment need.
    """

    _kept: ClassVar[dict[Key, ServerProcess]] = {}

    def __exit__(self, *_: object) -> None: ...

    def server(
        self,
        name: str,
        targets: Iterable[str] = (),
        *,
        device: DeclaredDevice | None = None,
        real_device: bool = False,
    ) -> ServerProcess:
        key = (name, self._known.interpreter(name).path, device, real_device)
        kept = self._kept.get(key)
        # The launcher itself would end a server of another environment or device.
        self._server = kept if kept is not None and kept.alive else None
        each = {*targets, *(t for t, row in TARGETS.items() if row.environment == name)}
        self._kept[key] = super().server(
            name, targets if device else sorted(each), device=device, real_device=real_device
        )
        return self._kept[key]

    @classmethod
    def close_all(cls) -> None:
        for server in cls._kept.values():
            server.close()
        cls._kept.clear()


def warm(
    jobs: int = 1,
    environments: tuple[str, ...] = ("default",),
    cache: Path | None = None,
    *,
    warn: bool = True,
    single: bool = False,
) -> WarmLauncher:
    """Stands for `LocalLauncher`; always with two jobs."""
    del jobs, single
    return WarmLauncher(2, environments, cache=cache, warn=warn)
