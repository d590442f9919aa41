"""Why Dynamo compiles a frame again, from its structured trace."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._logging import structured
from torch._logging._internal import trace_log

from compilewatch.records import Recompilation
from compilewatch.worker.targets.dynamo.capture import writes_the_trace
from compilewatch.worker.targets.dynamo.graph_breaks import portable_text, stack_frame


class Recompilations(logging.Handler):
    """Receives the reasons. `call` is the number of the call that is being made, from 1."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.call = 1
        self._frames: dict[str, dict[str, Any]] = {}
        self._reasons: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._of_fork: tuple[Recompilation, ...] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        trace_log.addHandler(self)
        try:
            yield
        finally:
            trace_log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if writes_the_trace():
            return
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        if "dynamo_start" in metadata:
            self._frames[compile_id] = metadata["dynamo_start"]["stack"][-1]
        elif metadata.get("artifact", {}).get("name") == "recompile_reasons":
            payload = str(getattr(record, "payload", ""))
            reasons = json.loads(payload) if payload.startswith("[") else [payload]  # if several
            # The first evaluation counts: others give their frames the same numbers.
            self._reasons.setdefault(compile_id, (self.call, tuple(map(_guard, reasons))))

    def take(self, of_fork: tuple[Recompilation, ...]) -> None:
        """Take over what the first evaluation has received in a fork."""
        if self._of_fork is None:
            self._of_fork = of_fork

    def reasons(self) -> tuple[Recompilation, ...]:
        """Return what was compiled again, in order."""
        if self._of_fork is not None:
            return self._of_fork
        files = {number: name for name, number in structured.INTERN_TABLE.items()}
        recompilations = []
        for compile_id, (call, guards) in self._reasons.items():
            frame = self._frames.get(compile_id)
            if frame is None:
                continue
            file = frame["filename"]
            place = stack_frame(files.get(file, str(file)), frame["line"], frame["name"])
            recompilations.append(
                Recompilation(
                    call=call,
                    function=place.function,
                    file=place.file,
                    line=place.line,
                    guards=guards,
                )
            )
        return tuple(recompilations)


def _guard(reason: str) -> str:
    """Return Dynamo's description of a guard in one line, without the stack behind it."""
    text = portable_text(reason.partition("\nUser stack trace:")[0])
    code, mark, place = text.partition("  # ")
    return " ".join((code + mark.strip() + " " + place).split()) if mark else " ".join(text.split())
