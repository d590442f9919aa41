"""A verified fix that is stored with a run, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from compilewatch.records import ModelFix, Result
from compilewatch.report.terminal import code, plain
from compilewatch.report.wording import plural, repeat_commands


def stored_fix_text(fix: ModelFix, result: Result) -> RenderableType:
    """A verified fix of a stored run for graph breaks of a result, with a note of its origin."""
    name = result.request.model.name
    breaks = {graph_break.fingerprint for graph_break in result.breaks}
    what = f"{len(fix.removed & breaks)} of {plural(len(breaks), 'graph break')}"
    origin = f"From run {fix.run}, where it is verified for {fix.model}; it removes {what}."
    if fix.model != name:
        _, explain, _ = repeat_commands(result.request)
        origin += f" For {name} nothing is verified: {explain.replace('explain', 'fix', 1)}"
    heading = plain("Stored fix: ", "bold")
    heading.append_text(plain(" and ".join(fix.changes), "bold green"))
    return Group(heading, plain(origin, "dim"), code(fix.code))
