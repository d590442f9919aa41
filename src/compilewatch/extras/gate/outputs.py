"""Where a session's findings are written: files that a person names, and GitHub's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from compilewatch.extras.gate.scanning import write_code_quality, write_sarif
from compilewatch.extras.gate.session import GateSession
from compilewatch.extras.gate.summary import step_summary, write_summary


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Paths of the files that are written after all checks, None for one that is not."""

    sarif: str | None = None
    summary: str | None = None
    code_quality: str | None = None

    def write(self, session: GateSession) -> Iterator[str]:
        """Write the files; yield a line for each one that could not be written."""
        writers: list[tuple[str | None, Callable[[Path, GateSession], None]]] = [
            (self.sarif, write_sarif),
            (self.summary, write_summary),
            (self.code_quality, write_code_quality),
        ]
        for name, write in writers:
            if name is None:
                continue
            try:
                write(Path(name), session)
            except OSError as error:
                yield f"{name} cannot be written: {error.strerror or error}"
        try:
            step_summary(session)
        except OSError as error:
            yield f"GITHUB_STEP_SUMMARY cannot be written: {error.strerror or error}"
