"""The public `fix`, which asks the extra of that name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compilewatch import plugins
from compilewatch.errors import UsageError
from compilewatch.records import Mode

if TYPE_CHECKING:
    from compilewatch.extras.fixes.records import Fix


def fix(
    model: str | Callable[[], Any],
    *,
    mode: str = "eval",
    dynamic: bool | None = None,
    inputs: str | None = None,
    max_evaluations: int | None = None,
    max_seconds: float | None = None,
    rewrites: bool = True,
) -> Fix:
    """Search for changes that remove the graph breaks of a model, and verify them.

    `model` is what `compilewatch fix` takes (`BertModel`, `./net.py`, `net:factory`), or a function
    or class at the top of a file that returns the module when it is called without arguments.
    `inputs` is what the option `--inputs` of that command takes. Each evaluation, and the script,
    has a process of its own, so that nothing of this process changes. `max_evaluations` (24) and
    `max_seconds` (600) limit the search; without `rewrites`, nothing is tried that edits the source
    of a library.

    Of what it returns, `status` is `verified` (single graph), `improves` (fewer graph breaks),
    `captured` (a single graph that the script rejected), `nothing`, `no_break` or `no_verdict`,
    `code` is the context manager to paste, `script` what verified it, and `holds_if` the conditions
    that no script can try. `print` shows it as `compilewatch fix` does.

    Raises UsageError for arguments that cannot be meant, and MissingExtraError without the extra
    `fixes`.
    """
    name = model if isinstance(model, str) else _name_of(model)
    if mode not in set(Mode):
        raise UsageError(f"mode is 'eval' or 'train', not {mode!r}")
    result: Fix = plugins.provided("fix", "fix")(
        name,
        mode=mode,
        dynamic=dynamic,
        inputs=inputs,
        max_evaluations=max_evaluations,
        max_seconds=max_seconds,
        rewrites=rewrites,
    )
    return result


def _name_of(model: Callable[[], Any]) -> str:
    """Return the name of what builds a model, by which another process can find it."""
    if inspect.isfunction(model) or inspect.isclass(model):
        file = inspect.getsourcefile(model)
        if file is not None and model.__qualname__.isidentifier():
            return f"{file}:{model.__qualname__}"
    raise UsageError(
        "fix takes a model by its name, such as './net.py:build', or a function or class at the "
        "top of a file, because each evaluation builds it anew in a process of its own"
    )
