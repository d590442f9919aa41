"""The Python source of a fix: the context manager that is printed, run and verified."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from compilewatch.extras.fixes.records import FixChange

NAME = "compilable"

_USE = """\
compiled = torch.compile(model)
with compilable(model, args, kwargs):
    compiled(*args, **kwargs)
"""

_USE_OPTIONS = """\
options = {}
with compilable(model, args, kwargs, options):
    compiled = torch.compile(model, **options)
    compiled(*args, **kwargs)
"""

OPTIONS_LINE = "options["


def imports(changes: Sequence[FixChange]) -> list[str]:
    """Return the import statements of a fix, sorted, without repetition."""
    needed = {"import contextlib", "import torch", "import torch._dynamo"}
    return sorted(needed | {line for each in changes for line in each.imports}, key=_import_order)


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from "), line


def context_manager(changes: Sequence[FixChange], title: str) -> str:
    """Return the source of `compilable(model, args, kwargs, options)`, with what it calls.

    `title` is its docstring, one line.
    """
    definitions = {text.strip("\n"): None for each in changes for text in each.definitions}
    body: list[str] = []
    for each in changes:
        body += [f"# {line}" for line in textwrap.wrap(each.summary, 84)]
        body += each.lines
    inside = textwrap.indent("\n".join(body), " " * 8)
    manager = (
        "@contextlib.contextmanager\n"
        f"def {NAME}(model, args, kwargs, options=None):\n"
        f'    """{title}"""\n'
        "    options = {} if options is None else options\n"
        "    with contextlib.ExitStack() as stack:\n"
        f"{inside}\n"
        "        yield\n"
    )
    return "\n\n\n".join([*definitions, manager])


def pasteable(changes: Sequence[FixChange], title: str) -> str:
    """Return a fix as a user pastes it: imports, the context manager, and an example of its use."""
    source = context_manager(changes, title)
    with_options = any(OPTIONS_LINE in line for each in changes for line in each.lines)
    if not with_options:
        source = source.replace(", options=None):", "):")
        source = source.replace("    options = {} if options is None else options\n", "")
    use = _USE_OPTIONS if with_options else _USE
    return "\n".join([*imports(changes), "\n", source, "\n" + use])
