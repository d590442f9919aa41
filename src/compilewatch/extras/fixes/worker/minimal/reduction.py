"""Chooses a candidate that has the graph break, and makes it as small as possible."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from compilewatch.extras.fixes.worker.minimal.candidates import ReproducerCandidate
from compilewatch.extras.fixes.worker.minimal.checking import CheckServer
from compilewatch.extras.fixes.worker.minimal.code import bound_names
from compilewatch.extras.fixes.worker.minimal.fresh import count_lines
from compilewatch.extras.fixes.worker.minimal.reasons import Likeness, likeness
from compilewatch.records import Record

LINES_WANTED = 40

_UNREADABLE = re.compile(r"\bunique_name_\d+\b")
"""What the reducer would call each name, to show that names do not matter."""


class Chosen(Record, frozen=True, kw_only=True):
    """A candidate whose graph break is like the wanted one, and how much."""

    candidate: ReproducerCandidate
    likeness: Likeness


def choose(
    candidates: Iterable[ReproducerCandidate], reason: str, server: CheckServer, deadline: float
) -> Chosen | None:
    """The first candidate with exactly the graph break, otherwise the one that is most like it.

    None if no candidate has the code of the graph break.
    """
    best: Chosen | None = None
    for candidate in candidates:
        if time.monotonic() > deadline:
            break
        found = like(server, candidate.source, reason)
        if best is None or found > best.likeness:
            best = Chosen(candidate=candidate, likeness=found)
        if found is Likeness.EXACT:
            break
    return best if best is not None and best.likeness is not Likeness.NONE else None


def like(server: CheckServer, source: str, reason: str) -> Likeness:
    """How much a graph break of a file is like the wanted one, at most."""
    check = server.check(source)
    return max((likeness(reason, each) for each in check.reasons), default=Likeness.NONE)


def reduced(chosen: Chosen, reason: str, server: CheckServer, seconds: float) -> str:
    """The smallest file found in some seconds whose graph break is as much like the wanted one.

    A file that is longer than `LINES_WANTED` gets four times as long.
    """
    known: dict[str, bool] = {}
    began = time.monotonic()
    lines = count_lines(chosen.candidate.source)

    def shows_it(source: str) -> bool:
        nonlocal lines
        allowed = seconds if lines <= LINES_WANTED else 4 * seconds
        late = time.monotonic() - began > allowed
        if late or _UNREADABLE.search(source) or undefined(source):
            return False
        if source not in known:
            known[source] = like(server, source, reason) >= chosen.likeness
            if known[source]:
                lines = min(lines, count_lines(source))
        return known[source]

    start = _emptied(_in_parts(chosen.candidate.source, shows_it), shows_it)
    start = without_inputs(_in_parts(start, shows_it), shows_it)
    import pysource_minimize

    try:
        smaller = pysource_minimize.minimize(start, shows_it, retries=0)
    except ValueError:  # the time is over: the reducer cannot even confirm its start
        return start
    return without_inputs(smaller, shows_it)


def load_reducer(file: str) -> None:
    """Let `import pysource_minimize` import the package of a file, and nothing else beside it."""
    name = "pysource_minimize"
    if not file or name in sys.modules:
        return
    folder = str(Path(file).parent)
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _emptied(source: str, shows_it: Callable[[str], bool]) -> str:
    """Leave out the bodies of functions, methods and classes: most are read, but never called."""
    number = 0
    while True:
        tree = ast.parse(source)
        bodies = [e for e in ast.walk(tree) if isinstance(e, ast.FunctionDef | ast.ClassDef)]
        full = [e for e in bodies if not isinstance(e.body[0], ast.Pass)]
        if number >= len(full):
            return source
        full[number].body = [ast.Pass()]
        if shows_it(ast.unparse(tree)):
            source = ast.unparse(tree)
        else:
            number += 1


def undefined(source: str) -> bool:
    """Whether a file reads a name that it defines nowhere: it need not be run."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return True
    bound = bound_names(tree)
    read = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return any(name.id not in bound and not hasattr(builtins, name.id) for name in read)


def without_inputs(source: str, shows_it: Callable[[str], bool]) -> str:
    """Leave out parameters of `f` together with what its call gives for them.

    The reducer changes one place at a time, and a function without one of them cannot be called.
    """
    number = 0
    while True:
        tree = ast.parse(source)
        functions = (e for e in tree.body if isinstance(e, ast.FunctionDef) and e.name == "f")
        function, call = next(functions, None), tree.body[-1] if tree.body else None
        if (
            function is None
            or not isinstance(call, ast.Expr)
            or not isinstance(call.value, ast.Call)
        ):
            return source
        if number >= min(len(function.args.args), len(call.value.args)):
            return source
        del function.args.args[number], call.value.args[number]
        if shows_it(ast.unparse(tree)):
            source = ast.unparse(tree)
        else:
            number += 1


def _in_parts(source: str, shows_it: Callable[[str], bool]) -> str:
    """Leave out halves, quarters, … of the top-level statements, as delta debugging does.

    The reducer goes through the tree one node after the other, which takes long for large files.
    """
    tree = ast.parse(source)
    size = len(tree.body) // 2
    while size >= 1:
        at = 0
        while at < len(tree.body):
            rest = ast.Module(body=tree.body[:at] + tree.body[at + size :], type_ignores=[])
            if shows_it(ast.unparse(rest)):
                tree = rest
            else:
                at += size
        size //= 2
    return ast.unparse(tree)
