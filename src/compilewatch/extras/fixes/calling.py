"""What `compilewatch.fix` returns: a fix with its text, found for a model by its name."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass

import msgspec
from rich.console import Console

from compilewatch.api.requests import one_request
from compilewatch.extras.fixes.fixing import Limits, find_fix
from compilewatch.extras.fixes.records import Fix, FixChange, Verification
from compilewatch.extras.fixes.search import MAX_EVALUATIONS, MAX_SECONDS
from compilewatch.extras.fixes.text import fix_panel
from compilewatch.records import GraphBreak


@dataclass(frozen=True, kw_only=True)
class FoundFix:
    """A `FixResult` (compilewatch.api.fixes); `fix` is the complete record."""

    fix: Fix

    @property
    def status(self) -> str:
        return self.fix.status.value

    @property
    def detail(self) -> str:
        return self.fix.detail

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        return self.fix.breaks

    @property
    def left(self) -> tuple[GraphBreak, ...]:
        return self.fix.left

    @property
    def changes(self) -> tuple[FixChange, ...]:
        return self.fix.changes

    @property
    def verification(self) -> Verification | None:
        return self.fix.verification

    @property
    def code(self) -> str:
        return self.fix.code

    @property
    def script(self) -> str:
        return self.fix.script

    def to_json(self) -> str:
        """Return the complete record as JSON."""
        return msgspec.json.encode(self.fix).decode()

    def __str__(self) -> str:
        width = shutil.get_terminal_size(fallback=(100, 24)).columns
        console = Console(width=width, no_color=True, highlight=False, file=io.StringIO())
        with console.capture() as captured:
            console.print(fix_panel(self.fix), crop=False)
        return captured.get().rstrip()


def fix_named(
    model: str,
    *,
    mode: str,
    dynamic: bool | None,
    inputs: str | None,
    max_evaluations: int | None,
    max_seconds: float | None,
    rewrites: bool,
) -> FoundFix:
    """Search for a fix of a model by its name; see `compilewatch.fix`."""
    request, settings = one_request(
        model, target="dynamo", mode=mode, dynamic=dynamic, inputs_file=inputs, flags={"jobs": 1}
    )
    limits = Limits(
        evaluations=MAX_EVALUATIONS if max_evaluations is None else max_evaluations,
        seconds=MAX_SECONDS if max_seconds is None else max_seconds,
    )
    return FoundFix(fix=find_fix(request, settings, limits=limits, rewrites=rewrites))
