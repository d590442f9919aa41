"""The worker's part of `reproduce --minimal`: cut a graph break out of a model, and reduce it.

The model is built here and runs up to the line of a graph break. Pieces of code around that line
are candidates, each written as a file of plain PyTorch. A server that was forked before a library
of models was imported runs each candidate in a fork, so that none works only because that library
has changed something (Transformers adds methods to `logging.Logger`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import importlib.metadata
import importlib.util
import itertools
import linecache
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum, StrEnum
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
import torch._dynamo
from torch import nn

from compilewatch.contract import processes
from compilewatch.contract.failures import RecordedError, one_line
from compilewatch.errors import InputsError
from compilewatch.extras.fixes import records
from compilewatch.extras.fixes.worker import writing
from compilewatch.records import Depth, GraphBreak, Mode, Record, Request, Tier, reason_title
from compilewatch.worker import forked
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo.capture import capture, unmeasured_guards

CHECK_SECONDS = 30
"""A candidate that does not end by then is rejected."""

FILE = "reproducer.py"
MOST_ROOTS = 6
MOST_LINES = 500
MOST_PASSES = 6
MOST_CHARACTERS = 200_000
LINES_WANTED = 40

GIVEN_UP = ("for _ in range(1):", "    torch._dynamo.graph_break()")
"""Lines after which Dynamo gives up a function: it cannot resume in a loop."""


def minimal(content: bytes) -> records.MinimalReproducer:
    """Write a minimal reproducer of a graph break of a model.

    `content` is a `MinimalOrder` as JSON; the model has real tensors and a reduced depth.
    """
    torch.set_num_threads(1)  # a fork of a process with a pool of threads would wait for them
    request, at, seconds, reducer, issue = msgspec.json.decode(content, type=records.MinimalOrder)
    load_reducer(reducer)
    request = msgspec.structs.replace(request, tier=Tier.REAL, depth=Depth.REDUCED)
    with contextlib.closing(CheckServer()) as server:
        # Only here, where the server is there: it imports libraries of models.
        from compilewatch.worker.reproduce import captured

        call = model_call(request)
        breaks = forked.in_fork(lambda: captured(request).breaks, tuple[GraphBreak, ...])
        graph_break = chosen_break(breaks, at)
        return reproducer(graph_break, request, call, server, seconds, issue=issue)


def load_reducer(file: str) -> None:
    """Let `import pysource_minimize` import the package of a file, and nothing else beside it."""
    name = "pysource_minimize"
    folder = str(Path(file).parent)
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def chosen_break(breaks: tuple[GraphBreak, ...], at: str | None) -> GraphBreak:
    """The graph break that is meant. Raises InputsError, which names those that there are."""
    if not breaks:
        raise InputsError("no graph break occurs, so there is nothing to reproduce")
    for broken in breaks:
        place = f"/{broken.file}:{broken.line}"
        if at is None or broken.code == at or place.endswith(f"/{at}"):
            return broken
    places = ", ".join(f"{broken.file}:{broken.line} ({broken.code})" for broken in breaks)
    raise InputsError(f"no graph break at {at}; there are: {places}")


def model_call(request: Request) -> Callable[[], object]:
    """Build the model with its inputs, and return a function that calls it."""
    from compilewatch.worker.example_inputs import make_inputs
    from compilewatch.worker.model.resolve import build_model

    train = request.target.mode is Mode.TRAIN

    def build() -> nn.Module:
        torch.manual_seed(0)
        module = build_model(request, None).module
        return module.train(train)  # detectors take other inputs in train mode

    inputs = make_inputs(build(), request, None)
    module = build()  # some rules for inputs call the model, which may change it

    def call() -> object:
        with torch.set_grad_enabled(train):
            return module(*inputs.args, **inputs.kwargs)

    return call


def reproducer(
    broken: GraphBreak,
    request: Request,
    call: Callable[[], object],
    server: CheckServer,
    seconds: float,
    *,
    issue: bool,
) -> records.MinimalReproducer:
    """Write, reduce and check the file of a graph break, which `call` reaches."""
    began, name = time.monotonic(), request.model.name
    place = f"{broken.code} at {broken.file}:{broken.line}"

    try:
        # The graph break is reached in a fork: its frames must live while candidates are written.
        form, source, degree, server.count = forked.in_fork(
            lambda: _choose(call, broken, server, began + records.CHOICE_SECONDS),
            tuple[str, str, int, int],
        )
    except Exception as error:  # noqa: BLE001  (whatever code of the model raises)
        form, source, degree = f"writing candidates failed: {one_line(error)}", "", 0
    if not source:
        return "", f"no minimal reproducer of {place}: {form}"
    body = reduced(source, degree, broken.reason, server, seconds)
    # Where Dynamo's handling of the graph break is the point, `fullgraph=True` cannot show it.
    is_cut = handling(broken.reason) == "cut"
    for showing in Showing if is_cut else (Showing.LOGGED, Showing.GIVEN_UP):
        source = complete(body, broken, name, showing=showing)
        code, reason, is_same = run_fresh(source, broken.reason)
        is_enough = is_same or degree < Likeness.REASON or showing is not Showing.RAISED
        if code == broken.code and is_enough:
            break
    else:
        shown = f"in a fresh process, the file shows {code or reason} instead of {broken.code}"
        return "", f"no minimal reproducer of {place}: {shown}"
    note = (
        f"{place}: {count_lines(source)} lines, made from {form}; in a fresh process it shows "
        f"{broken.code} with {'the same' if is_same else 'another'} reason ({server.count} "
        f"candidates in {time.monotonic() - began:.0f} s)"
    )
    return draft(broken, name, source, reason) if issue else source, note


def _choose(
    call: Callable[[], object], broken: GraphBreak, server: CheckServer, deadline: float
) -> tuple[str, str, int, int]:
    """The first candidate with exactly the graph break, or else the one that is most like it.

    Returns what it was made from, its source, its likeness, and how many were checked; without a
    source, why there is none.
    """
    frames = frames_at(call, broken)
    if not frames:
        return "the line is not reached with real tensors", "", 0, 0
    best, source, degree, error = "", "", 0, ""
    for form, candidate in candidates(frames):
        if time.monotonic() > deadline:
            break
        check = server.check(candidate)
        error = error or check.error
        if (alike := check.likeness(broken.reason)) > degree:
            best, source, degree = form, candidate, alike
        if degree == Likeness.EXACT:
            break
    if not source:
        best = f"none of {server.count} pieces of code shows {broken.code}: "
        best += error or "they show other graph breaks"
    return best, source, degree, server.count


# --- the frames at a graph break ------------------------------------------------------------------


class Frame:
    """What a frame was when it was live: its code, its line, its globals and its local variables.

    `called` are its local variables when it was called, None if the call was not seen.
    """

    def __init__(self, frame: types.FrameType, called: dict[str, Any] | None) -> None:
        self.code, self.globals = frame.f_code, frame.f_globals
        self.line, self.values = frame.f_lineno, dict(frame.f_locals)
        self.called = called


class Reached(BaseException):
    """Ends the run; not an Exception, which code of a model might catch."""


def frames_at(call: Callable[[], object], broken: GraphBreak) -> tuple[Frame, ...]:
    """Call the model until it is at the place of a graph break; return its frames, innermost first.

    A library may run a line only while it is compiled: then the flag is set that says so, and if
    that does not help, the frames are those of the first call of the function. Empty if the model
    does not call the function either. The model is called up to three times; its state may change.
    """
    for compiling, exact in ((False, True), (True, True), (False, False)):
        frames: list[Frame] = []
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = compiling
        sys.settrace(_watch(broken, frames, exact=exact))
        try:
            with contextlib.suppress(Reached, Exception):
                call()
        finally:
            sys.settrace(None)
            torch.compiler._is_compiling_flag = before
        if frames:
            return tuple(frames)
    return ()


def _watch(broken: GraphBreak, found: list[Frame], *, exact: bool) -> Callable[..., Any]:
    """A function for `sys.settrace` that puts the frames at a graph break into a list."""
    function = broken.function
    if function.startswith("torch_dynamo_resume_in_"):
        function = function.removeprefix("torch_dynamo_resume_in_").rpartition("_at_")[0]
    target = (broken.file, function)
    places = {(frame.file, frame.function) for frame in broken.user_stack} | {target}
    calls: dict[int, dict[str, Any]] = {}
    known: dict[types.CodeType, tuple[str, str]] = {}

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in known:
            known[code] = (graph_breaks.package_path(code.co_filename), code.co_name)
        if known[code] not in places and code.co_name not in writing.COMPREHENSIONS:
            return None
        if event == "call":
            calls[id(frame)] = dict(frame.f_locals)
        if known[code] != target:
            return None
        if not exact:
            stop(frame)
        return lines

    def lines(frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno == broken.line:
            stop(frame)
        return lines

    def stop(frame: types.FrameType) -> NoReturn:
        sys.settrace(None)
        at: types.FrameType | None = frame
        while at is not None and "compilewatch" not in at.f_globals.get("__name__", ""):
            found.append(Frame(at, calls.get(id(at))))
            at = at.f_back
        raise Reached

    return trace


# --- candidates -----------------------------------------------------------------------------------

Write = Callable[[writing.Writer], list[str]]


def candidates(frames: Iterable[Frame]) -> Iterator[tuple[str, str]]:
    """Candidates from the frames at a graph break, innermost first: what each is, and its file.

    Equal files come once.
    """
    reached = frozenset(frame.code for frame in frames)
    roots = [
        frame
        for frame in frames
        if frame.code.co_name not in writing.COMPREHENSIONS
        and not writing.is_plain_module(str(frame.globals.get("__name__", "torch")))
    ]
    seen: set[str] = set()
    for depth, frame in enumerate(roots[:MOST_ROOTS]):
        where = f"{frame.code.co_name}, {depth} calls above" if depth else frame.code.co_name
        for form, write in _forms(frame):
            for exact, decorators in ((False, False), (True, False), (False, True)):
                source = _complete(write, reached, exact=exact, decorators=decorators)
                if source is not None and source not in seen:
                    seen.add(source)
                    yield f"{form} of {where}", source


def _forms(frame: Frame) -> Iterator[tuple[str, Write]]:
    statements = writing.statements_at(frame.code, frame.line)
    own: list[tuple[str, ast.stmt]] = []
    if statements and (header := writing.header_of(statements[0])) is not None:
        own.append(("the first line of the statement", header))
    own += [("the block" if n else "the statement", s) for n, s in enumerate(statements[:3])]
    arguments = writing.arguments_of(statements[0]) if statements else []
    pieces = [*(("an argument in the statement", argument) for argument in arguments), *own]
    for form, statement in pieces:
        yield form, partial(_statement, frame=frame, statement=statement)
    for form, statement in own[:1]:
        loop = partial(_statement, frame=frame, statement=statement, around="for _ in range(2):")
        yield f"{form}, in a loop,", loop
    if frame.called is not None:
        yield "the function", partial(_function, frame=frame)
    for form, statement in pieces:
        eager = partial(_statement, frame=frame, statement=statement, before=GIVEN_UP)
        yield f"{form}, in a function that runs in eager mode,", eager


def _complete(
    write: Write, reached: frozenset[Any], *, exact: bool, decorators: bool
) -> str | None:
    """The file, written again until it has each attribute that its own code reads."""
    attributes: set[str] = set()
    for _ in range(MOST_PASSES):
        known = len(attributes)
        writer = writing.Writer(attributes, reached, exact=exact, decorators=decorators)
        try:
            text = writer.text(write(writer))
        except RecursionError:
            return None
        if len(attributes) == known:
            break
    try:
        compile(text, FILE, "exec")
    except (SyntaxError, ValueError):
        return None
    too_large = text.count("\n") > MOST_LINES or len(text) > MOST_CHARACTERS
    return None if too_large else text


def _statement(
    writer: writing.Writer, frame: Frame, statement: ast.stmt, *, around: str = "", before: Any = ()
) -> list[str]:
    """A function of the local variables that a statement reads, and its call."""
    code = (type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType)
    writer.attributes |= writing.attributes_read(statement)
    names = writing.names_read(statement)
    inputs = [n for n in names if n in frame.values and not isinstance(frame.values[n], code)]
    scope = {**frame.globals, **frame.values}
    others = writer.defined_names([name for name in names if name not in inputs], scope)
    copied = ast.parse(ast.unparse(statement)).body[0]
    writing.renamed(copied, others)
    arguments = [writer.expression(frame.values[name], name) for name in inputs]
    body = ast.unparse(copied).splitlines()
    if around:
        body = [around, *("    " + line for line in body)]
    lines = [f"def f({', '.join(inputs)}):", *("    " + line for line in (*before, *body))]
    return [*lines, f"torch.compile(f, backend='eager')({', '.join(arguments)})"]


def _function(writer: writing.Writer, frame: Frame) -> list[str]:
    """The whole function with the arguments of its call."""
    node, code, called = writing.function_of(frame.code), frame.code, frame.called
    if not isinstance(node, ast.FunctionDef) or called is None:
        return ["raise NotImplementedError"]
    node.decorator_list = []
    for defaults in (node.args.defaults, node.args.kw_defaults):
        for number, default in enumerate(defaults):
            if default is not None and not isinstance(default, ast.Constant):
                defaults[number] = ast.Constant(None)
    written = writer.code(node, "f", {**frame.globals, **called})
    names, count = code.co_varnames, code.co_argcount
    arguments = [writer.expression(called[name], name) for name in names[:count]]
    if node.args.vararg is not None:
        arguments += [writer.expression(value, "x") for value in called[node.args.vararg.arg]]
    keywords = [(name, called[name]) for name in names[count : count + code.co_kwonlyargcount]]
    if node.args.kwarg is not None:
        keywords += called[node.args.kwarg.arg].items()
    arguments += [f"{name}={writer.expression(value, name)}" for name, value in keywords]
    return [written, f"torch.compile(f, backend='eager')({', '.join(arguments)})"]


# --- what a candidate does ------------------------------------------------------------------------


class Likeness(IntEnum):
    """How much of one graph break another one has; each level includes those below it."""

    NONE = 0
    CODE = 1
    """The code."""
    REASON = 2
    """Also the type, the explanation and the operation of the reason."""
    EXACT = 3
    """Also what Dynamo does then: it cuts the graph, or gives up the frame."""


class Check(Record, frozen=True, kw_only=True):
    """What a candidate did: the reasons of its graph breaks, or the error that ended it."""

    reasons: tuple[str, ...] = ()
    error: str = ""

    def likeness(self, reason: str) -> Likeness:
        """How much a graph break of the candidate is like the wanted one, at most."""
        return max((likeness(reason, own) for own in self.reasons), default=Likeness.NONE)


class CheckServer:
    """A process that runs candidates; `count` is their number."""

    def __init__(self) -> None:
        warm_up()
        self.count = 0
        self._connection, connection = multiprocessing.Pipe()
        self._pid = forked.fork()
        if self._pid == 0:
            self._connection.close()
            _serve(connection)
        connection.close()

    def close(self) -> None:
        self._connection.close()
        os.waitpid(self._pid, 0)

    def check(self, source: str) -> Check:
        """Run a candidate, which ends with a call of `torch.compile(…, backend="eager")`."""
        self.count += 1
        self._connection.send_bytes(source.encode())
        return msgspec.json.decode(self._connection.recv_bytes(), type=Check)


def warm_up() -> None:
    """Let Dynamo import what it imports when it first compiles and first breaks a graph."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + x.sum().item()
        return x

    eager = torch._dynamo.lookup_backend("eager")
    capture(lambda f: f(torch.ones(2)), broken, backend=eager, dynamic=None)
    torch._dynamo.reset()


def _serve(connection: Connection) -> NoReturn:
    gc.collect()
    gc.freeze()  # no fork copies pages of what exists by now
    try:
        while True:
            check = _in_fork(connection.recv_bytes().decode())
            connection.send_bytes(msgspec.json.encode(check))
    except EOFError:
        os._exit(0)
    finally:
        os._exit(1)


def _in_fork(source: str) -> Check:
    def run() -> Check:
        gc.disable()
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        return _run(source)

    try:
        return forked.in_fork(run, Check, limit_seconds=CHECK_SECONDS)
    except (forked.ForkEndedError, RecordedError):
        return Check(error="the process ended")


def _run(source: str) -> Check:
    """Run a candidate, in which `torch.compile` listens to the graph breaks."""
    reasons: list[str] = []

    def compiled(function: Any = None, *, backend: str = "inductor", **_: Any) -> Any:
        if backend != "eager" or function is None:
            raise InputsError("only a compilation with the backend eager is captured")

        def call(*args: Any, **kwargs: Any) -> None:
            # An empty tensor would show the graph break, but nobody calls a model with one.
            if any(torch.is_tensor(arg) and not arg.numel() for arg in args):
                raise InputsError("an input is empty")
            with unmeasured_guards():
                captured = capture(
                    lambda optimized: optimized(*args, **kwargs),
                    function,
                    backend=torch._dynamo.lookup_backend(backend),
                    dynamic=None,
                )
            reasons.extend(graph_break.reason for graph_break in captured.breaks())

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


# --- reasons --------------------------------------------------------------------------------------

_CONTEXT = re.compile(r"^  Developer debug context: (.*?)(?:\n\s*\n|\Z)", re.M | re.S)
_OF_THE_CODE = re.compile(r"(?:,? ?\b(?:args|kwargs)|(?i:source)): .*", re.S)
_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_TRACE = " The branch condition involves a tensor computed as follows:"
_LOGGED = re.compile(r"^.*?Graph Break Reason: ", re.M)
_END_OF_LOGGED = re.compile(r"\n\n?User code traceback:\n|\n\nStack variable source attribution:\n")
_RAISED = re.compile(
    r"^torch\._dynamo\.exc\.\w+: (.*?)(?=\n\nfrom user code:|\n\nSet TORCHDYNAMO_VERBOSE"
    r"|\nTraceback \(most recent|\nTorchDynamo attempted|\Z)",
    re.M | re.S,
)
_LOG_PREFIX = re.compile(r"^[VIWEC]\d{4} [^\]]*\](?: \[[\d/]+\])?(?: \[__\w+\])? ?", re.M)


def likeness(reason: str, other: str) -> Likeness:
    """How much the reason `other` of torch is like the reason `reason`."""
    first, second = graph_breaks.classify(reason), graph_breaks.classify(other)
    if first.code != second.code:
        return Likeness.NONE
    if (first.gb_type, _essence(reason)) != (second.gb_type, _essence(other)):
        return Likeness.CODE
    return Likeness.EXACT if handling(reason) == handling(other) else Likeness.REASON


def handling(reason: str) -> str:
    """What Dynamo does after a graph break: `cut`, `given up`, or `unresumable`."""
    if reason.startswith("Failed to handle graph break gracefully"):
        return "given up"
    unresumable = reason.startswith("Encountered graph break that we cannot resume from")
    return "unresumable" if unresumable else "cut"


def _essence(reason: str) -> tuple[str, str]:
    """The explanation and the context of a reason, without what depends on the code at hand."""
    context = _CONTEXT.search(graph_breaks.innermost(reason))
    operation = _OF_THE_CODE.sub("", context[1]) if context else ""
    explanation = _QUOTED.sub("''", graph_breaks.classify(reason).explanation.partition(_TRACE)[0])
    return _without_objects(explanation), _without_objects(operation)


def _without_objects(text: str) -> str:
    before = ""
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return re.sub(r"\b\d+\b", "0", text)


def reasons_in(printed: str) -> list[str]:
    """The reasons in what torch prints: those that it logs, and those of exceptions."""
    text = _LOG_PREFIX.sub("", printed)
    logged = [_END_OF_LOGGED.split(piece)[0].strip() for piece in _LOGGED.split(text)[1:]]
    return logged + [raised[1].strip() for raised in _RAISED.finditer(text)]


# --- the file that users get ----------------------------------------------------------------------


class Showing(StrEnum):
    """How a file lets torch show the graph break."""

    RAISED = "fullgraph=True raises it"
    LOGGED = "torch._logging.set_logs(graph_breaks=True)"
    GIVEN_UP = "torch._logging.set_logs(graph_breaks=True, dynamo=20)"
    """Frames that fail before Dynamo traces them are only in the messages of level INFO (20)."""


def complete(body: str, broken: GraphBreak, model: str, *, showing: Showing) -> str:
    """The file that users get: a comment about its origin, and the reduced code."""
    first_line = reason_title(broken)
    comments = [
        f"# A graph break of torch.compile, reduced from {model}",
        f"# ({broken.file}:{broken.line}, in {broken.function}) by compilewatch.",
        f"# Expected: {broken.code}, {first_line[:80]}",
        f"# Versions: torch {torch.__version__}, Python {sys.version.split()[0]}",
    ]
    tree = ast.parse(body)
    if showing is not Showing.RAISED:
        at = [isinstance(statement, ast.Import | ast.ImportFrom) for statement in tree.body]
        tree.body[at.index(False) : at.index(False)] = ast.parse(showing.value).body
    text = _spaced(tree)
    if showing is Showing.RAISED:
        call = r"torch\.compile\((\w+), backend='eager'\)"
        text = re.sub(call, r"torch.compile(\1, backend='eager', fullgraph=True)", text)
    text = text.replace("'", '"') if "'" in text and '"' not in text else text
    return "\n".join([*comments, text])


def draft(broken: GraphBreak, model: str, source: str, reason: str) -> str:
    """The draft of an issue as Markdown."""
    reason = (reason or broken.reason).strip()
    shown = "PyTorch logs the graph break"
    if "fullgraph=True" in source:
        shown = "With `fullgraph=True`, it raises an error"
    hints = "\n".join(f"- {hint}" for hint in broken.hints)
    explained: list[str] = []
    if (broken.explanation or hints) and "  Explanation: " not in reason:  # torch often has both
        explained = ["## Explanation and hints of PyTorch", broken.explanation, hints]
    stack: list[str] = []
    for frame in broken.user_stack:
        stack.append(f"{frame.file}:{frame.line}, in {frame.function}")
        stack += [f"    {frame.text}"] if frame.text else []
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    versions |= {"torch_git": torch.version.git_version, "platform": platform.platform()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["transformers"] = importlib.metadata.version("transformers")
    sections = [
        f"# torch.compile: graph break {broken.code}: {reason_title(broken)}",
        f"`torch.compile` breaks the graph of `{model}` at `{broken.file}:{broken.line}`, in "
        f"`{broken.function}`. The code below shows the same graph break with plain PyTorch. "
        f"{shown}.",
        "## Reproducer",
        f"```python\n{source.rstrip()}\n```",
        "## Reason",
        f"```\n{reason}\n```",
        *explained,
        "## Stack of the model",
        "\n".join(["```", *(stack or ["PyTorch reported no stack."]), "```"]),
        "## Versions",
        "\n".join(f"- {name}: {version}" for name, version in versions.items()),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _spaced(tree: ast.Module) -> str:
    """The statements with empty lines around definitions, and one after imports."""
    definitions, imports = (ast.FunctionDef, ast.ClassDef), (ast.Import, ast.ImportFrom)
    text = ast.unparse(tree.body[0])
    for before, node in itertools.pairwise(tree.body):
        after_imports = isinstance(before, imports) and not isinstance(node, imports)
        is_apart = isinstance(before, definitions) or isinstance(node, definitions)
        text += "\n" * (3 if is_apart else 2 if after_imports else 1) + ast.unparse(node)
    return text + "\n"


def count_lines(source: str) -> int:
    """Lines without comments and empty ones."""
    kept = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in kept)


def run_fresh(source: str, reason: str) -> tuple[str | None, str, bool]:
    """Run a file in a new process; return what torch prints of a graph break.

    That is the code of the one that is most like the wanted one, its reason, and whether that is
    the same. Without a graph break there is no code, and the reason says what happened.
    """
    of_the_worker = ("TORCH_LOGS", "PYTHONPATH")  # which a user's shell does not have
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as folder:
        path = Path(folder) / FILE
        path.write_text(source)
        try:
            ended = processes.run(
                [sys.executable, str(path)],
                seconds=records.FRESH_SECONDS,
                cwd=folder,
                env={k: v for k, v in os.environ.items() if k not in of_the_worker},
            )
        except subprocess.TimeoutExpired:
            return None, "the file did not end in time", False
    errors = ended.stderr.decode(errors="replace")
    printed = reasons_in(errors)
    if not printed:
        lines = errors.strip().splitlines()
        return None, (lines or ["torch printed no graph break"])[-1], False
    best = max(printed, key=lambda own: likeness(reason, own))
    same = likeness(reason, best) >= Likeness.REASON
    return graph_breaks.classify(best).code, graph_breaks.portable_text(best), same


# --- reduction ------------------------------------------------------------------------------------

Shows = Callable[[str], bool]


def reduced(start: str, degree: int, reason: str, server: CheckServer, seconds: float) -> str:
    """The smallest file found in some seconds whose graph break is as much like the wanted one.

    A file that is longer than `LINES_WANTED` gets four times as long.
    """
    import pysource_minimize

    known: dict[str, bool] = {}
    began = time.monotonic()
    lines = count_lines(start)

    def shows_it(source: str) -> bool:
        nonlocal lines
        if source in known:  # also when it is late: the reducer relies on equal answers
            return known[source]
        allowed = seconds if lines <= LINES_WANTED else 4 * seconds
        late = time.monotonic() - began > allowed
        # The reducer would show by unique names that names do not matter.
        if late or re.search(r"\bunique_name_\d+\b", source) or undefined(source):
            return False
        known[source] = server.check(source).likeness(reason) >= degree
        if known[source]:
            lines = min(lines, count_lines(source))
        return known[source]

    source = in_parts(start, shows_it)
    source = without(source, shows_it, empty_body)
    source = in_parts(source, shows_it)
    source = without(source, shows_it, drop_input)
    try:
        smaller = pysource_minimize.minimize(source, shows_it, retries=0)
    except ValueError:  # the time is over: the reducer cannot even confirm its start
        return source
    return without(smaller, shows_it, drop_input)


def without(source: str, shows_it: Shows, change: Callable[[ast.Module, int], bool]) -> str:
    """Make each change of a kind, one after the other, and keep those that leave the graph break.

    `change` changes a tree at its place of a number, and returns False if there is none.
    """
    number = 0
    while change(tree := ast.parse(source), number):
        if shows_it(smaller := ast.unparse(tree)):
            source = smaller
        else:
            number += 1
    return source


def in_parts(source: str, shows_it: Shows) -> str:
    """Leave out halves, quarters, … of the top-level statements, as delta debugging does.

    The reducer goes through the tree one node after the other, which takes long for large files.
    """
    size = len(ast.parse(source).body) // 2
    while size >= 1:

        def drop_part(tree: ast.Module, number: int, size: int = size) -> bool:
            part = slice(number * size, (number + 1) * size)
            is_there = bool(tree.body[part])
            del tree.body[part]
            return is_there

        source = without(source, shows_it, drop_part)
        size //= 2
    return ast.unparse(ast.parse(source))


def empty_body(tree: ast.Module, number: int) -> bool:
    """Leave out the body of a function, method or class: most are read, but never called."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    full = [node for node in nodes if not isinstance(node.body[0], ast.Pass)]
    for node in full[number : number + 1]:
        node.body = [ast.Pass()]
    return number < len(full)


def drop_input(tree: ast.Module, number: int) -> bool:
    """Leave out a parameter of `f` together with what its call gives for it.

    The reducer changes one place at a time, and a function without one of them cannot be called.
    """
    functions = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "f")
    match next(functions, None), tree.body[-1:]:
        case ast.FunctionDef(args=parameters), [ast.Expr(value=ast.Call(args=arguments))]:
            is_there = number < min(len(parameters.args), len(arguments))
            if is_there:
                del parameters.args[number], arguments[number]
            return is_there
    return False


def undefined(source: str) -> bool:
    """Whether a file reads a name that it defines nowhere: it need not be run."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return True
    bound = writing.bound_names(tree)
    read = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return any(name.id not in bound and not hasattr(builtins, name.id) for name in read)
