"""Runs candidates of a reproducer, each in a fork of a process that has imported only torch.

The server is forked before a library of models is imported, so that no candidate works only
because that library has changed something (Transformers adds methods to `logging.Logger`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import importlib.util
import linecache
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

import msgspec
import torch
import torch._dynamo

from compilewatch.extras.fixes.records import FRESH_SECONDS, FreshRun
from compilewatch.extras.fixes.worker.minimal.writing import bound_names
from compilewatch.records import GraphBreak, Record
from compilewatch.worker.forked import fork
from compilewatch.worker.targets.dynamo.capture import capture, unmeasured_guards
from compilewatch.worker.targets.dynamo.graph_breaks import classify, innermost, portable_text

CHECK_SECONDS = 30
"""A candidate that does not end by then is rejected."""

FILE = "reproducer.py"


class ReproducerCandidate(Record, frozen=True, kw_only=True):
    """A file and what it is made from: `form` says it, for readers of a report."""

    form: str
    source: str


class Check(Record, frozen=True, kw_only=True):
    """What a candidate did: the reasons of its graph breaks, or the error that ended it."""

    reasons: tuple[str, ...] = ()
    error: str = ""


class CheckServer:
    """Use as a context manager: the process ends with it."""

    def __enter__(self) -> CheckServer:
        warm_up()
        read_source, self._write = os.pipe()
        self._read, write_check = os.pipe()
        self._pid = fork()
        if self._pid == 0:
            os.close(self._write)
            os.close(self._read)
            with os.fdopen(read_source, "rb") as sources, os.fdopen(write_check, "wb") as checks:
                _serve(sources, checks)
        os.close(read_source)
        os.close(write_check)
        self._sources = os.fdopen(self._write, "wb")
        self._checks = os.fdopen(self._read, "rb")
        self.count = 0
        self.last = Check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._sources.close()
        self._checks.close()
        os.waitpid(self._pid, 0)

    def check(self, source: str) -> Check:
        """Run a candidate, which ends with a call of `torch.compile(…, backend="eager")`."""
        self.count += 1
        _send(self._sources, source.encode())
        self.last = msgspec.json.decode(_receive(self._checks), type=Check)
        return self.last


def warm_up() -> None:
    """Let Dynamo import what it imports when it first compiles and first breaks a graph."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + x.sum().item()
        return x

    capture(lambda f: f(torch.ones(2)), broken, backend=_eager(), dynamic=None)
    torch._dynamo.reset()


def _eager() -> Any:
    return torch._dynamo.lookup_backend("eager")


def _send(stream: BinaryIO, content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "big") + content)
    stream.flush()


def _receive(stream: BinaryIO) -> bytes:
    size = stream.read(8)
    if len(size) < 8:
        raise EOFError("the process that checks candidates ended")
    return stream.read(int.from_bytes(size, "big"))


def _serve(sources: BinaryIO, checks: BinaryIO) -> NoReturn:
    gc.collect()
    gc.freeze()  # no fork copies pages of what exists by now
    try:
        while True:
            source = _receive(sources).decode()
            _send(checks, _in_fork(lambda: _run(source)))  # noqa: B023  (called at once)
    except EOFError:
        os._exit(0)
    finally:
        os._exit(1)


def _in_fork(function: Callable[[], Check]) -> bytes:
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(read)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHECK_SECONDS)
        gc.disable()
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        try:
            with os.fdopen(write, "wb") as stream:
                stream.write(msgspec.json.encode(function()))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        written = stream.read()
    os.waitpid(pid, 0)
    return written or msgspec.json.encode(Check(error="the process ended"))


class UnusableError(Exception):
    """The candidate is no reproducer, whatever graph breaks it has."""


def _run(source: str) -> Check:
    """Run a candidate, in which `torch.compile` listens to the graph breaks."""
    reasons: list[str] = []

    original = torch.compile

    def compiled(
        function: Any = None, *, backend: str = "inductor", fullgraph: bool = False
    ) -> Any:
        if backend != "eager" or function is None:
            raise UnusableError("only a compilation with the backend eager is captured")

        def call(*args: Any, **kwargs: Any) -> None:
            _check_inputs(args)
            if fullgraph:
                try:
                    original(function, backend=backend, fullgraph=True)(*args, **kwargs)
                except torch._dynamo.exc.Unsupported as error:
                    reasons.append(str(error).partition("\n\nfrom user code:")[0])
                return
            with unmeasured_guards():
                captured = capture(
                    lambda optimized: optimized(*args, **kwargs),
                    function,
                    backend=_eager(),
                    dynamic=None,
                )
            reasons.extend(graph_break.reason for graph_break in captured.log.breaks())

        return call

    torch.compile = compiled
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.setrecursionlimit(3000)
    # Dynamo compiles no function of a file without lines.
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        exec(compile(source, FILE, "exec"), {"__name__": "__main__"})
    except BaseException as error:  # noqa: BLE001  (whatever a candidate raises)
        return Check(error=f"{type(error).__name__}: {str(error)[:300]}")
    return Check(reasons=tuple(reasons))


def _check_inputs(args: tuple[Any, ...]) -> None:
    """An empty tensor would show the graph break, but nobody calls a model with one."""
    for argument in args:
        if torch.is_tensor(argument) and argument.numel() == 0:
            raise UnusableError("an input is empty")


_CONTEXT = re.compile(r"^  Developer debug context: (.*?)(?:\n\s*\n|\Z)", re.M | re.S)
_OF_THE_CODE = re.compile(r"(?:,? ?\b(?:args|kwargs)|(?i:source)): .*", re.S)
_OBJECT = re.compile(r"<[^<>]*>")
_NUMBER = re.compile(r"\b\d+\b")
_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_TRACE = " The branch condition involves a tensor computed as follows:"
_GIVEN_UP = "Failed to handle graph break gracefully"
_UNRESUMABLE = "Encountered graph break that we cannot resume from"


class Likeness(IntEnum):
    """How much of one graph break another one has; each level includes those below it."""

    NONE = 0
    CODE = 1
    """The code."""
    REASON = 2
    """Also the type, the explanation and the operation of the reason."""
    EXACT = 3
    """Also what Dynamo does then: it cuts the graph, or gives up the frame."""


def likeness(reason: str, other: str) -> Likeness:
    """How much the reason `other` of torch is like the reason `reason`."""
    first, second = classify(reason), classify(other)
    if first.code != second.code:
        return Likeness.NONE
    if (first.gb_type, _essence(reason)) != (second.gb_type, _essence(other)):
        return Likeness.CODE
    return Likeness.EXACT if handling(reason) == handling(other) else Likeness.REASON


def handling(reason: str) -> str:
    """What Dynamo does after a graph break: `cut`, `given up`, or `unresumable`."""
    if reason.startswith(_GIVEN_UP):
        return "given up"
    return "unresumable" if reason.startswith(_UNRESUMABLE) else "cut"


def _essence(reason: str) -> tuple[str, str]:
    """The explanation and the context of a reason, without what depends on the code at hand."""
    inner = innermost(reason)
    context = _CONTEXT.search(inner)
    operation = _OF_THE_CODE.sub("", context[1]) if context else ""
    explanation = _QUOTED.sub("''", classify(reason).explanation.partition(_TRACE)[0])
    return _without_objects(explanation), _without_objects(operation)


def _without_objects(text: str) -> str:
    before = ""
    while before != text:
        before, text = text, _OBJECT.sub("", text)
    return _NUMBER.sub("0", text)


_CALL = re.compile(r"torch\.compile\((\w+), backend='eager'\)")
_LOGGED = re.compile(r"^.*?Graph Break Reason: ", re.M)
_END_OF_LOGGED = re.compile(r"\n\n?User code traceback:\n|\n\nStack variable source attribution:\n")
_RAISED = re.compile(
    r"^torch\._dynamo\.exc\.\w+: (.*?)(?=\n\nfrom user code:|\n\nSet TORCHDYNAMO_VERBOSE"
    r"|\nTraceback \(most recent|\nTorchDynamo attempted|\Z)",
    re.M | re.S,
)
_LOG_PREFIX = re.compile(r"^[VIWEC]\d{4} [^\]]*\](?: \[[\d/]+\])?(?: \[__\w+\])? ?", re.M)
_OF_THE_WORKER = ("TORCH_LOGS", "PYTHONPATH")
"""Variables that a user's shell does not have."""


class Showing(StrEnum):
    """How a file lets torch show the graph break."""

    RAISED = "fullgraph=True raises it"
    LOGGED = "torch._logging.set_logs(graph_breaks=True)"
    GIVEN_UP = "torch._logging.set_logs(graph_breaks=True, dynamo=20)"
    """Frames that fail before Dynamo traces them are only in the messages of level INFO (20)."""


def complete(body: str, broken: GraphBreak, model: str, *, showing: Showing) -> str:
    """The file that users get: a comment about its origin, and the reduced code."""
    place = f"{broken.file}:{broken.line}, in {broken.function}"
    first_line = (broken.gb_type or broken.reason).splitlines()[0]
    lines = [
        f"# A graph break of torch.compile, reduced from {model}",
        f"# ({place}) by compilewatch.",
        f"# Expected: {broken.code}, {first_line[:80]}",
        f"# Versions: torch {torch.__version__}, Python {sys.version.split()[0]}",
    ]
    tree = ast.parse(body)
    if showing is not Showing.RAISED:
        imports = [isinstance(statement, ast.Import | ast.ImportFrom) for statement in tree.body]
        tree.body[imports.index(False) : imports.index(False)] = ast.parse(showing.value).body
    text = "\n".join(_spaced(tree))
    if showing is Showing.RAISED:
        text = _CALL.sub(r"torch.compile(\1, backend='eager', fullgraph=True)", text)
    return "\n".join([*lines, text.replace("'", '"') if "'" in text and '"' not in text else text])


def _spaced(tree: ast.Module) -> list[str]:
    """The statements with empty lines around definitions."""
    lines: list[str] = []
    before: ast.stmt | None = None
    for node in tree.body:
        defines = isinstance(node, ast.FunctionDef | ast.ClassDef)
        imports = isinstance(before, ast.Import | ast.ImportFrom)
        after_import = imports and not isinstance(node, ast.Import | ast.ImportFrom)
        if before is not None and (
            defines or isinstance(before, ast.FunctionDef | ast.ClassDef) or after_import
        ):
            lines += ["", ""] if defines or not after_import else [""]
        lines += ast.unparse(node).splitlines()
        before = node
    return [*lines, ""]


def count_lines(source: str) -> int:
    """Lines without comments and empty ones."""
    kept = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in kept)


def run_fresh(source: str, reason: str) -> FreshRun:
    """Run a file in a new process and read the graph breaks that torch prints."""
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as folder:
        path = Path(folder) / "reproducer.py"
        path.write_text(source)
        try:
            ended = subprocess.run(
                [sys.executable, str(path)],
                capture_output=True,
                check=False,
                text=True,
                cwd=folder,
                timeout=FRESH_SECONDS,
                env={k: v for k, v in os.environ.items() if k not in _OF_THE_WORKER},
            )
        except subprocess.TimeoutExpired:
            return FreshRun(code=None, reason="the file did not end in time")
    printed = reasons_in(ended.stderr)
    if not printed:
        last = (ended.stderr.strip().splitlines() or ["torch printed no graph break"])[-1]
        return FreshRun(code=None, reason=last)
    best = max(printed, key=lambda each: likeness(reason, each))
    return FreshRun(
        code=classify(best).code,
        reason=portable_text(best),
        same_reason=likeness(reason, best) >= Likeness.REASON,
    )


def reasons_in(printed: str) -> list[str]:
    """The reasons in what torch prints: those that it logs, and those of exceptions."""
    text = _LOG_PREFIX.sub("", printed)
    logged = [_END_OF_LOGGED.split(piece)[0].strip() for piece in _LOGGED.split(text)[1:]]
    return logged + [found[1].strip() for found in _RAISED.finditer(text)]


def may_raise(reason: str) -> bool:
    """Whether `fullgraph=True` can show a graph break: not where Dynamo's handling is the point."""
    return handling(reason) == "cut"


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
        degree = like(server, candidate.source, reason)
        if best is None or degree > best.likeness:
            best = Chosen(candidate=candidate, likeness=degree)
        if degree is Likeness.EXACT:
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
