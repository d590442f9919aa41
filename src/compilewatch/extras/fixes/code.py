"""The Python source of a fix: the context manager that is printed, run and verified."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from compilewatch.extras.fixes.records import FixChange

NAME = "compilable"

_USE = """\
compiled = torch.compile(model)
with compilable(model, args, kwargs) as (given, named):
    compiled(*given, **named)
"""

_USE_OPTIONS = """\
options = {}
with compilable(model, args, kwargs, options) as (given, named):
    compiled = torch.compile(model, **options)
    compiled(*given, **named)
"""

IN_CONTEXT = "Each call is made inside of the context manager, where threads take turns."
"""A condition of each fix that is a context manager."""

OPTIONS_LINE = "options["


def imports(changes: Sequence[FixChange]) -> list[str]:
    """Return the import statements of a fix, sorted, without repetition."""
    needed = {"import contextlib", "import threading", "import torch", "import torch._dynamo"}
    return sorted(
        needed | {line for change in changes for line in change.imports},
        key=lambda line: (line.startswith("from "), line),
    )


def context_manager(changes: Sequence[FixChange], title: str) -> str:
    """Return the source of `compilable(model, args, kwargs, options)`, with what it calls.

    The manager yields the arguments of the call, and leaves those of the caller as they are. What
    it changes is in force for all threads: they take turns. `title` is its docstring, one line.
    """
    definitions = {text.strip("\n"): None for change in changes for text in change.definitions}
    body: list[str] = []
    for change in changes:
        body += [f"# {line}" for line in textwrap.wrap(change.summary, 84)]
        body += change.lines
    inside = textwrap.indent("\n".join(body), " " * 8)
    manager = (
        "@contextlib.contextmanager\n"
        f"def {NAME}(model, args, kwargs, options=None):\n"
        f'    """{title}"""\n'
        "    options = {} if options is None else options\n"
        "    kwargs = dict(kwargs)\n"
        "    with TURNS, contextlib.ExitStack() as stack:\n"
        f"{inside}\n"
        "        yield args, kwargs\n"
    )
    return "\n\n\n".join(["TURNS = threading.RLock()", *definitions, manager])


def pasteable(changes: Sequence[FixChange], title: str, holds_if: Sequence[str] = ()) -> str:
    """Return a fix as a user pastes it: imports, the context manager, its use, and conditions.

    `holds_if` are conditions besides those of the changes.
    """
    source = context_manager(changes, title)
    with_options = any(OPTIONS_LINE in line for change in changes for line in change.lines)
    if not with_options:
        source = source.replace(", options=None):", "):")
        source = source.replace("    options = {} if options is None else options\n", "")
    use = _USE_OPTIONS if with_options else _USE
    of_changes = [text for change in changes for text in change.holds_if]
    conditions = dict.fromkeys([IN_CONTEXT, *of_changes, *holds_if])
    return "\n".join([*imports(changes), "\n", source, "\n" + use, *_comments(conditions)])


def _comments(conditions: Iterable[str]) -> Iterator[str]:
    yield "# Holds if:"
    for condition in conditions:
        yield textwrap.fill(condition, 90, initial_indent="# - ", subsequent_indent="#   ")
