"""The worker's part of `reproduce --minimal`: build, reach, cut out, reduce, verify."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import platform
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from compilewatch.contract.failures import one_line
from compilewatch.errors import InputsError
from compilewatch.extras.fixes.records import (
    CHOICE_SECONDS,
    MinimalOrder,
    MinimalOutcome,
    MinimalReproducer,
)
from compilewatch.extras.fixes.worker.minimal.checking import (
    CheckServer,
    Chosen,
    Likeness,
    ReproducerCandidate,
    Showing,
    choose,
    complete,
    count_lines,
    like,
    load_reducer,
    may_raise,
    reduced,
    run_fresh,
)
from compilewatch.extras.fixes.worker.minimal.writing import (
    COMPREHENSIONS,
    Writer,
    arguments_of,
    function_of,
    header_of,
    is_plain_module,
    names_read,
    statements_at,
)
from compilewatch.records import Depth, GraphBreak, Mode, Record, Request, Tier
from compilewatch.worker import forked
from compilewatch.worker.targets.dynamo.graph_breaks import package_path

_RESUMED = "torch_dynamo_resume_in_"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A frame that was live: its code, its line, and its names when it was called and at the line.

    `called` is None if the call was not seen.
    """

    code: types.CodeType
    line: int
    called: dict[str, Any] | None
    values: dict[str, Any]
    globals: dict[str, Any]

    @property
    def scope(self) -> dict[str, Any]:
        return {**self.globals, **self.values}


class Reached(BaseException):
    """Ends the run; not an Exception, which code of a model might catch."""


def frames_at(call: Callable[[], object], broken: GraphBreak) -> tuple[Frame, ...]:
    """Call the model until it is at the place of a graph break; return its frames, innermost first.

    A library may run a line only while it is compiled: then the flag is set that says so, and if
    that does not help, the frames are those of the first call of the function. Empty if the model
    does not call the function either. The model is called up to three times; its state may change.
    """
    for compiling, exact in ((False, True), (True, True), (False, False)):
        frames = _run(call, broken, compiling=compiling, exact=exact)
        if frames:
            return frames
    return ()


def _run(
    call: Callable[[], object], broken: GraphBreak, *, compiling: bool, exact: bool
) -> tuple[Frame, ...]:
    watch = _Watch(broken, exact=exact)
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = compiling
    sys.settrace(watch.trace)
    try:
        with contextlib.suppress(Reached, Exception):
            call()
    finally:
        sys.settrace(None)
        torch.compiler._is_compiling_flag = before
    return watch.found


class _Watch:
    def __init__(self, broken: GraphBreak, *, exact: bool) -> None:
        self._file, self._line = broken.file, broken.line
        name = broken.function
        if name.startswith(_RESUMED):
            name = name.removeprefix(_RESUMED).rpartition("_at_")[0]
        self._function = name
        self._exact = exact
        self._places = {(e.file, e.function) for e in broken.user_stack} | {(self._file, name)}
        self._calls: dict[int, dict[str, Any]] = {}
        self._paths: dict[types.CodeType, tuple[str, str]] = {}
        self.found: tuple[Frame, ...] = ()

    def _place(self, code: types.CodeType) -> tuple[str, str]:
        if code not in self._paths:
            self._paths[code] = (package_path(code.co_filename), code.co_name)
        return self._paths[code]

    def trace(self, frame: types.FrameType, event: str, _: Any) -> Any:
        place = self._place(frame.f_code)
        if place not in self._places and frame.f_code.co_name not in COMPREHENSIONS:
            return None
        if event == "call":
            self._calls[id(frame)] = dict(frame.f_locals)
        if place == (self._file, self._function):
            if not self._exact:
                self._stop(frame)
            return self.lines
        return None

    def lines(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno == self._line:
            self._stop(frame)
        return self.lines

    def _stop(self, frame: types.FrameType) -> None:
        sys.settrace(None)
        frames: list[Frame] = []
        at: types.FrameType | None = frame
        while at is not None and "compilewatch" not in at.f_globals.get("__name__", ""):
            frames.append(
                Frame(
                    code=at.f_code,
                    line=at.f_lineno,
                    called=self._calls.get(id(at)),
                    values=dict(at.f_locals),
                    globals=at.f_globals,
                )
            )
            at = at.f_back
        self.found = tuple(frames)
        raise Reached


MOST_ROOTS = 6
MOST_LINES = 500
MOST_PASSES = 6
MOST_CHARACTERS = 200_000

GIVEN_UP = ("for _ in range(1):", "    torch._dynamo.graph_break()")
"""Lines after which Dynamo gives up a function: it cannot resume in a loop."""


def candidates(frames: Iterable[Frame]) -> Iterator[ReproducerCandidate]:
    """Candidates from the frames at a graph break, innermost first. Equal files come once."""
    reached = frozenset(frame.code for frame in frames)
    seen: set[str] = set()
    for depth, frame in enumerate(_roots(frames)):
        where = f"{frame.code.co_name}, {depth} calls above" if depth else frame.code.co_name
        for form, write in _forms(frame):
            for exact, decorators in ((False, False), (True, False), (False, True)):
                source = _complete(write, reached, exact=exact, decorators=decorators)
                if source is not None and source not in seen:
                    seen.add(source)
                    yield ReproducerCandidate(form=f"{form} of {where}", source=source)


def _roots(frames: Iterable[Frame]) -> list[Frame]:
    """The frames of the library's own functions, innermost first."""
    own = (
        frame
        for frame in frames
        if frame.code.co_name not in COMPREHENSIONS
        and not is_plain_module(str(frame.globals.get("__name__", "torch")))
    )
    return [frame for frame, _ in zip(own, range(MOST_ROOTS), strict=False)]


Write = Callable[[Writer], list[str]]


def _forms(frame: Frame) -> Iterator[tuple[str, Write]]:
    statements = statements_at(frame.code, frame.line)
    pieces: list[tuple[str, ast.stmt]] = []
    if statements:
        pieces += [
            ("an argument in the statement", argument) for argument in arguments_of(statements[0])
        ]
    for number, statement in enumerate(statements[:3]):
        header = header_of(statement)
        if header is not None and number == 0:
            pieces.append(("the first line of the statement", header))
        pieces.append(("the statement" if number == 0 else "the block", statement))
    for form, statement in pieces:
        yield form, lambda writer, s=statement: _statement(writer, frame, s)  # type: ignore[misc]
    if pieces:
        whole = next(p for p in pieces if p[0] != "an argument in the statement")
        first = whole[1]
        yield (
            f"{whole[0]}, in a loop,",
            lambda writer: _statement(writer, frame, first, around="for _ in range(2):"),
        )
    if frame.called is not None:
        yield "the function", lambda writer: _function(writer, frame)
    for form, statement in pieces:
        yield (
            f"{form}, in a function that runs in eager mode,",
            lambda writer, s=statement: _statement(writer, frame, s, before=GIVEN_UP),  # type: ignore[misc]
        )


def _complete(
    write: Write, reached: frozenset[Any], *, exact: bool, decorators: bool
) -> str | None:
    """The file, written again until it has each attribute that its own code reads."""
    attributes: set[str] = set()
    for _ in range(MOST_PASSES):
        known = len(attributes)
        writer = Writer(attributes, reached, exact=exact, decorators=decorators)
        try:
            text = writer.text(write(writer))
        except RecursionError:
            return None
        if len(attributes) == known:
            break
    too_large = text.count("\n") > MOST_LINES or len(text) > MOST_CHARACTERS
    return None if too_large or not _compiles(text) else text


def _compiles(text: str) -> bool:
    try:
        compile(text, "reproducer.py", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _statement(
    writer: Writer,
    frame: Frame,
    statement: ast.stmt,
    *,
    around: str = "",
    before: tuple[str, ...] = (),
) -> list[str]:
    """A function of the local variables that a statement reads, and its call."""
    writer.reads(statement)
    names = names_read(statement)
    inputs = [n for n in names if n in frame.values and not _is_code(frame.values[n])]
    renamed = writer.defined_names([n for n in names if n not in inputs], frame.scope)
    copied = ast.parse(ast.unparse(statement)).body[0]
    for node in ast.walk(copied):
        if isinstance(node, ast.Name):
            node.id = renamed.get(node.id, node.id)
    arguments = [writer.expression(frame.values[n], n) for n in inputs]
    body = ast.unparse(copied).splitlines()
    if around:
        body = [around, *("    " + line for line in body)]
    lines = [f"def f({', '.join(inputs)}):", *("    " + line for line in (*before, *body))]
    return [*lines, f"torch.compile(f, backend='eager')({', '.join(arguments)})"]


def _is_code(value: Any) -> bool:
    return isinstance(
        value, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType
    )


def _function(writer: Writer, frame: Frame) -> list[str]:
    """The whole function with the arguments of its call."""
    node = function_of(frame.code)
    assert frame.called is not None
    if not isinstance(node, ast.FunctionDef):
        return ["raise NotImplementedError"]
    node.decorator_list = []
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None and not isinstance(default, ast.Constant):
            _replace_by_none(node, default)
    written = writer.code(node, "f", {**frame.globals, **frame.called})
    code, called = frame.code, frame.called
    positional = code.co_varnames[: code.co_argcount]
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    arguments = [writer.expression(called[n], n) for n in positional]
    if node.args.vararg is not None:
        arguments += [writer.expression(inner, "x") for inner in called[node.args.vararg.arg]]
    arguments += [f"{n}={writer.expression(called[n], n)}" for n in keywords]
    if node.args.kwarg is not None:
        given = called[node.args.kwarg.arg]
        arguments += [f"{n}={writer.expression(v, n)}" for n, v in given.items()]
    return [written, f"torch.compile(f, backend='eager')({', '.join(arguments)})"]


def _replace_by_none(node: ast.FunctionDef, default: ast.expr) -> None:
    none = ast.Constant(None)
    node.args.defaults = [none if each is default else each for each in node.args.defaults]
    node.args.kw_defaults = [none if e is default else e for e in node.args.kw_defaults]


class _Choice(Record, frozen=True, kw_only=True):
    """What a fork returns: the chosen candidate, or why there is none, and how many it ran."""

    chosen: Chosen | None = None
    failure: str = ""
    checks: int = 0


def minimal(content: bytes) -> MinimalOutcome:
    """Do what `content` says, a `MinimalOrder` as JSON."""
    torch.set_num_threads(1)  # a fork of a process with a pool of threads would wait for them
    order = msgspec.json.decode(content, type=MinimalOrder)
    load_reducer(order.reducer)
    request = msgspec.structs.replace(order.request, tier=Tier.REAL, depth=Depth.REDUCED)
    with CheckServer() as server:
        call = model_call(request)
        breaks = order.breaks or captured_breaks(request)
        reproducers = tuple(
            _reproducer(graph_break, request, call, server, order.seconds)
            for graph_break in chosen_breaks(breaks, order)
        )
    return MinimalOutcome(reproducers=reproducers, versions=versions())


def chosen_breaks(breaks: tuple[GraphBreak, ...], order: MinimalOrder) -> tuple[GraphBreak, ...]:
    """The graph breaks that are meant. Raises InputsError, which names those that there are."""
    if not breaks:
        raise InputsError("no graph break occurs, so there is nothing to reproduce")
    if order.at is None:
        return breaks if order.breaks else breaks[:1]
    matching = tuple(graph_break for graph_break in breaks if _is_at(graph_break, order.at))
    if not matching:
        places = ", ".join(
            f"{graph_break.file}:{graph_break.line} ({graph_break.code})" for graph_break in breaks
        )
        raise InputsError(f"no graph break at {order.at}; there are: {places}")
    return matching[:1]


def _is_at(broken: GraphBreak, at: str) -> bool:
    return broken.code == at or f"/{broken.file}:{broken.line}".endswith(f"/{at}")


def model_call(request: Request) -> Callable[[], object]:
    """Build the model with its inputs, and return a function that calls it."""
    from compilewatch.worker.example_inputs import make_inputs
    from compilewatch.worker.model.overrides import overrides_of
    from compilewatch.worker.model.resolve import build_model

    torch.manual_seed(0)
    overrides = overrides_of(request)
    built = build_model(request, None, overrides)
    train = request.target.mode is Mode.TRAIN
    built.module.train(train)  # detectors take other inputs in train mode
    called: list[object] = []
    hook = register_module_forward_pre_hook(lambda module, _: called.append(module))
    try:
        inputs = make_inputs(built.module, built.config, request, overrides, None)
    finally:
        hook.remove()
    if called:  # some rules for inputs call the model, which may change it
        torch.manual_seed(0)
        built = build_model(request, None, overrides)
        built.module.train(train)

    def call() -> object:
        with torch.set_grad_enabled(train):
            return built.module(*inputs.args, **inputs.kwargs)

    return call


def captured_breaks(request: Request) -> tuple[GraphBreak, ...]:
    """Capture the model as `compilewatch explain` does, in a fork."""
    from compilewatch.worker.reproduce import captured

    return forked.in_fork(lambda: captured(request).breaks, tuple[GraphBreak, ...], [])


def _reproducer(
    broken: GraphBreak,
    request: Request,
    call: Callable[[], object],
    server: CheckServer,
    seconds: float,
) -> MinimalReproducer:
    began, before = time.monotonic(), server.count

    def outcome(**fields: Any) -> MinimalReproducer:
        spent = time.monotonic() - began
        return MinimalReproducer(
            broken=broken, checks=server.count - before, seconds=round(spent, 1), **fields
        )

    try:
        choice = forked.in_fork(
            lambda: _choose(call, broken, server, began + CHOICE_SECONDS), _Choice, []
        )
    except Exception as error:  # noqa: BLE001  (whatever code of the model raises)
        return outcome(failure=f"writing candidates failed: {one_line(error)}")
    server.count += choice.checks
    if choice.chosen is None:
        return outcome(failure=choice.failure)
    chosen = choice.chosen
    body = reduced(chosen, broken.reason, server, seconds)
    raising = complete(body, broken, request.model.name, showing=Showing.RAISED)
    raises = may_raise(broken.reason) and like(server, raising, broken.reason) >= min(
        chosen.likeness, Likeness.REASON
    )
    for showing in (Showing.RAISED,) if raises else (Showing.LOGGED, Showing.GIVEN_UP):
        source = complete(body, broken, request.model.name, showing=showing)
        fresh = run_fresh(source, broken.reason)
        if fresh.code == broken.code:
            break
    failure = ""
    if fresh.code != broken.code:
        shown = fresh.code or fresh.reason
        failure = f"in a fresh process, the file shows {shown} instead of {broken.code}"
    return outcome(
        source=source,
        form=chosen.candidate.form,
        lines=count_lines(source),
        fresh=fresh,
        failure=failure,
    )


def _choose(
    call: Callable[[], object], broken: GraphBreak, server: CheckServer, deadline: float
) -> _Choice:
    """Reach the graph break in this process, a fork, and choose while its frames live."""

    frames = frames_at(call, broken)
    if not frames:
        return _Choice(failure="the line is not reached with real tensors")
    before, tried = server.count, 0
    errors: dict[str, None] = {}

    def each() -> Iterator[ReproducerCandidate]:
        nonlocal tried
        for candidate in candidates(frames):
            tried += 1
            yield candidate
            if server.last.error:
                errors.setdefault(server.last.error)

    chosen = choose(each(), broken.reason, server, deadline)
    summary = f"none of {tried} pieces of code shows {broken.code}"
    failure = f"{summary}: {next(iter(errors), 'they show other graph breaks')}"
    return _Choice(chosen=chosen, failure=failure, checks=server.count - before)


def versions() -> dict[str, str]:
    """Versions of the packages that decide about a graph break, and of Python."""
    by_package = {"torch": str(torch.__version__), "python": platform.python_version()}
    by_package["torch_git"] = str(torch.version.git_version)
    by_package["platform"] = platform.platform()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        by_package["transformers"] = importlib.metadata.version("transformers")
    return by_package
