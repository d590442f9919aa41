"""The versions of each frame that Dynamo compiles, and why an earlier one did not do.

The facts are Dynamo's own. Its structured trace has the guards that failed (`recompile_reasons`)
and, for each guard on a size, the line that needs it (`guard_added_fast`;
torch/fx/experimental/symbolic_shapes.py). A graph's inputs have their sizes: a number where the
graph is for that size only, else a symbol of a shape environment, which knows its range.
"""

from __future__ import annotations

import json
import linecache
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from traceback import FrameSummary
from types import FrameType
from typing import Any

import msgspec
import sympy  # type: ignore[import-untyped]
import torch
from torch._guards import CompileContext, TracingContext
from torch._logging import structured
from torch._logging._internal import trace_log
from torch.fx import GraphModule

from compilewatch.records import Recompilation, RecompilationKind, StackFrame
from compilewatch.worker.targets.dynamo import graph_breaks

_CONVERT_FRAME = "torch/_dynamo/convert_frame.py"
_TRACE_WRITER = "torch/_logging/"

_MISMATCH = re.compile(
    r"tensor '(?P<tensor>.+?)' size mismatch at index (?P<dimension>\d+)\. "
    r"expected (?P<expected>\d+), actual (?P<actual>\d+)"
)
"""The message of a guard on a tensor (torch/csrc/dynamo/guards.cpp)."""

_OTHER_MISMATCH = re.compile(r"tensor '(?P<tensor>.+?)' ")
_SIZE = re.compile(r"(?P<tensor>[\w.'\[\]]+?)\.size\(\)\[(?P<dimension>\d+)\]")
_ARGUMENT = re.compile(r"^(?:L\[')?kwargs(?:'\])?\['(\w+)'\]|^L\['(\w+)'\]")
_RESUMED = "torch_dynamo_resume_in_"
_NAME = re.compile(
    r"(?:not |\d+ <=? |\w+\()*(?P<name>(?!utils_device)[A-Za-z_]\w*(?:\.\w+|\[[^\]]*\])*)"
    r"(?=$|[),]| (?:[=!<>]=?|is|in|not) )"
)
"""What a guard in Python is about: `self.step == 1`, `not ___dict_contains('step', …)`, `len(x)`.

Guards on the state of torch, such as the mode of gradients, have no such form.
"""

_KEY = re.compile(r"___dict_contains\('(?P<key>\w+)', (?P<owner>.+?)(?:\.__dict__)?\)")
_OF_MODULE = re.compile(r"\._(parameters|buffers)\[")
_CHILD = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
_PLACE = re.compile(
    r"(?:File \"|  # )(?P<file>[^\"\n#]+?)(?:\", line |:)(?P<line>\d+),? in (?P<name>\S+)"
)
"""The line that reads a value: behind a guard in Python, and in the stack below it (torch 2.15)."""

_ID = re.compile(r"(?<=_id\()([^,()]+), \d+")
"""The address of an object or type in a guard (`___check_obj_id(f, 140…)`)."""

_USER_STACK = "\nUser stack trace:"


@dataclass
class Version:
    """A frame as Dynamo compiled it once.

    `reasons` are Dynamo's texts of the guards of earlier versions that failed. `tensors` are the
    sizes of the tensors that its graph takes, but for parameters and buffers: integers, or symbols
    of the shape environment. `needs` are the lines that its guards on sizes come from, by the text
    of the guard.
    """

    compile_id: str
    call: int
    frame: StackFrame
    reasons: tuple[str, ...] = ()
    tensors: dict[str, Any] = field(default_factory=dict)
    needs: dict[str, StackFrame | None] = field(default_factory=dict)
    environment: Any = None

    def sizes(self) -> dict[str, int]:
        """The sizes that its tensors had when it was compiled."""
        return {
            name: size if isinstance(size, int) else int(size.node.hint)
            for name, size in self.tensors.items()
            if isinstance(size, int) or size.node.hint is not None  # None of an unbacked one
        }

    def dynamic(self) -> dict[str, tuple[int, int | None]]:
        """The bounds of the sizes that may differ."""
        ranges: dict[str, tuple[int, int | None]] = {}
        for name, size in self.tensors.items():
            expression = None if isinstance(size, int) else self.environment.replace(size.node.expr)
            if expression is None or expression.is_number:
                continue
            bounds = self.environment.bound_sympy(expression)
            upper = bounds.upper
            finite = upper.is_number and upper.is_finite and upper < 2**62
            ranges[name] = (int(bounds.lower), int(upper) if finite else None)
        return ranges

    def edges(self) -> set[int]:
        """The sizes on both sides of each bound and each number that guards on sizes name."""
        if self.environment is None:
            return set()
        numbers = {bound for bounds in self.dynamic().values() for bound in bounds if bound}
        for guard in self.environment.guards:
            numbers |= {int(number) for number in guard.expr.atoms(sympy.Integer)}
        return {number + step for number in numbers for step in (-1, 0, 1)}

    def fixed(self, sizes: dict[str, int]) -> int:
        """How many sizes differ from those that it is for alone."""
        return sum(
            name not in self._ranges and sizes.get(name, size) != size
            for name, size in self.sizes().items()
        )

    def unmet(self, sizes: dict[str, int]) -> tuple[sympy.Basic, StackFrame | None] | None:
        """The first of `all_unmet`."""
        return next(self.all_unmet(sizes), None)

    def all_unmet(self, sizes: dict[str, int]) -> Iterator[tuple[sympy.Basic, StackFrame | None]]:
        """Yield guards on symbols that do not hold for sizes, and the line that each is from.

        The symbols have the names of their dimensions.
        """
        if self.environment is None:
            return
        values: dict[sympy.Basic, Any] = {
            symbol: sympy.Integer(sizes[name]) for symbol, name in self._symbols if name in sizes
        }
        names = {symbol: sympy.Symbol(name) for symbol, name in reversed(self._symbols)}
        for guard in self.environment.guards:
            if not _may_hold(guard.expr, values):
                yield guard.expr.xreplace(names), self.needs.get(str(guard.expr))

    def holds(self, tensors: dict[str, int]) -> bool:
        """Whether it serves tensors of these sizes, as its ranges and guards say."""
        values: dict[Any, int] = {}
        for name, expression in self._expressions.items():
            size = tensors.get(name)
            if size is None:
                continue
            lower, upper = self._ranges.get(name, (expression, expression))
            if size < lower or (upper is not None and size > upper):
                return False
            if not isinstance(expression, int) and values.setdefault(expression, size) != size:
                return False
        return self.unmet(tensors) is None

    @cached_property
    def _ranges(self) -> dict[str, tuple[int, int | None]]:
        return self.dynamic()

    @cached_property
    def _symbols(self) -> list[tuple[sympy.Basic, str]]:
        sources = self.environment.var_to_sources.items()
        return [(symbol, _dimension(source)) for symbol, several in sources for source in several]

    @cached_property
    def _expressions(self) -> dict[str, Any]:
        """The sizes of its tensors: numbers, or expressions of symbols."""
        sizes = self.sizes()
        return {
            name: self.environment.replace(size.node.expr) if name in self._ranges else sizes[name]
            for name, size in self.tensors.items()
        }


class Versions(logging.Handler):
    """Receives what Dynamo compiles. `call` is the number of the call that is made, from 1."""

    def __init__(self, *, dynamic: bool | None = None) -> None:
        super().__init__(logging.DEBUG)
        self.call = 1
        self.compiled: dict[str, Version] = {}
        self._dynamic = dynamic
        self._reasons: dict[str, tuple[str, ...]] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        trace_log.addHandler(self)
        try:
            yield
        finally:
            trace_log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        is_reason = metadata.get("artifact", {}).get("name") == "recompile_reasons"
        if not is_reason and metadata.keys().isdisjoint(("dynamo_start", "guard_added_fast")):
            return  # of hundreds for each frame; the stack is long
        if writes_the_trace():
            return
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        if "dynamo_start" in metadata:
            if (frame := _place(_interned(metadata["dynamo_start"]["stack"]))) is not None:
                reasons = self._reasons.get(compile_id, ())
                # The first evaluation counts: others give their frames the same numbers.
                version = Version(compile_id, self.call, frame, reasons)
                self.compiled.setdefault(compile_id, version)
        elif is_reason:
            payload = str(getattr(record, "payload", ""))
            several = json.loads(payload) if payload.startswith("[") else [payload]
            self._reasons.setdefault(compile_id, tuple(several))
        elif compile_id in self.compiled:
            guard, needs = metadata["guard_added_fast"], self.compiled[compile_id].needs
            if guard["expr"] not in needs:
                needs[guard["expr"]] = _place(_interned(guard.get("user_stack") or ()))

    def graph(self, graph: GraphModule) -> str:
        """Take note of the sizes of a graph's tensors; returns its compile id."""
        compile_id = str(CompileContext.current_compile_id())
        context, version = TracingContext.try_get(), self.compiled.get(compile_id)
        if version is not None and context is not None and context.fake_mode is not None:
            version.environment = context.fake_mode.shape_env
            for node in graph.graph.find_nodes(op="placeholder"):
                value, source = node.meta.get("example_value"), node.meta.get("grapharg")
                if isinstance(value, torch.Tensor) and source is not None:
                    name = argument(source_name(source.source))
                    if _OF_MODULE.search(name):
                        continue
                    sizes = {f"{name}.{dim}": size for dim, size in enumerate(value.shape)}
                    version.tensors |= sizes
        return compile_id

    def recompilations(self) -> tuple[Recompilation, ...]:
        """Return what was compiled again, in order, each with its cause."""
        return tuple(
            self._recompilation(version) for version in self.compiled.values() if version.reasons
        )

    def _recompilation(self, version: Version) -> Recompilation:
        """The cause is that of the version that was nearest to do; see `records.Recompilation`."""
        sizes = version.sizes()

        def nearness(reason: str) -> tuple[int, int]:
            compile_id = reason.partition(": ")[0]
            earlier = self.compiled.get(compile_id)
            fixed = earlier.fixed(sizes) if earlier is not None else len(sizes)
            return fixed, -int(compile_id.rpartition("/")[2])

        reasons = sorted(version.reasons, key=nearness)
        nearest, _, failed = reasons[0].partition(": ")
        before = self.compiled.get(nearest)
        kind, subject, needed_by = (
            self._cause(before, failed, version)
            if before is not None
            else (RecompilationKind.OTHER, "", None)
        )
        return Recompilation(
            call=version.call,
            function=version.frame.function,
            file=version.frame.file,
            line=version.frame.line,
            guards=tuple(map(guard_text, reasons)),
            kind=kind,
            subject=subject,
            needed_by=needed_by,
        )

    def _cause(
        self, before: Version, reason: str, version: Version
    ) -> tuple[RecompilationKind, str, StackFrame | None]:
        code = reason.partition(_USER_STACK)[0].partition("  # ")[0]
        sizes = version.sizes()
        if mismatch := _MISMATCH.search(code):
            subject = f"{argument(mismatch['tensor'])}.{mismatch['dimension']}"
            sizes[subject] = int(mismatch["actual"])
            unmet = before.unmet(sizes)
            if unmet is not None:  # the code has made a constant of a size that was dynamic
                return RecompilationKind.CONSTANT, subject, unmet[1]
            could_differ = self._dynamic or self._was_dynamic(subject, version)
            if could_differ and {mismatch["expected"], mismatch["actual"]} & {"0", "1"}:
                return RecompilationKind.SIZE_0_OR_1, subject, None
            return RecompilationKind.FIRST_STATIC, subject, None
        compared = [
            f"{argument(size['tensor'])}.{size['dimension']}" for size in _SIZE.finditer(code)
        ]
        if compared:
            for subject in compared:
                if sizes.get(subject, 2) < 2:
                    return RecompilationKind.SIZE_0_OR_1, subject, None
            unmet = before.unmet(sizes)
            if unmet is None:
                return RecompilationKind.EQUAL_SIZES, compared[0], None
            return _kind_of(unmet[0]), compared[0], unmet[1]
        if named := _OTHER_MISMATCH.search(code):
            return RecompilationKind.ARGUMENT, argument(named["tensor"]), None
        read_by = _place(
            FrameSummary(_whole(file), int(line), name, lookup_line=False)
            for file, line, name in _PLACE.findall(reason)
        )
        key, name = _KEY.search(code), _NAME.match(code.strip())
        if key is not None:
            source = f"{key['owner']}.{key['key']}"
        elif name is not None:
            source = name["name"]
        else:
            return RecompilationKind.OTHER, "", None
        subject = argument(_CHILD.sub(r".\1", source))
        if subject.startswith("___stack"):  # what the code at the break has returned
            return RecompilationKind.VALUE, "", version.frame
        if _RESUMED in reason:
            return RecompilationKind.VALUE, subject, read_by
        if "." in subject or subject == "self" or subject.startswith("G["):
            return RecompilationKind.ATTRIBUTE, subject, read_by
        return RecompilationKind.ARGUMENT, subject, read_by

    def _was_dynamic(self, subject: str, version: Version) -> bool:
        frame = version.compile_id.rpartition("/")[0]
        return any(
            subject in other.dynamic()
            for other in self.compiled.values()
            if other.call < version.call and other.compile_id.rpartition("/")[0] == frame
        )


def _kind_of(guard: sympy.Basic) -> RecompilationKind:
    if any("Mod" in type(part).__name__ for part in sympy.preorder_traversal(guard)):
        return RecompilationKind.MODULO
    if not isinstance(guard, sympy.Eq):
        return RecompilationKind.BRANCH
    has_number = any(side.is_number for side in guard.args)
    return RecompilationKind.CONSTANT if has_number else RecompilationKind.EQUAL_SIZES


def _may_hold(guard: sympy.Basic, values: dict[sympy.Basic, Any]) -> bool:
    try:
        return bool(_value(guard, values) != sympy.false)
    except ZeroDivisionError:  # a modulo of a size
        return False


def _value(expression: Any, values: dict[sympy.Basic, Any]) -> Any:
    """What `xreplace` returns, but each part, which guards share, is computed once for `values`."""
    if not getattr(expression, "args", ()):
        return values.get(expression, expression)
    if expression not in values:
        args = [_value(arg, values) for arg in expression.args]
        changed = any(new is not old for new, old in zip(args, expression.args, strict=True))
        values[expression] = expression.func(*args) if changed else expression
    return values[expression]


def _dimension(source: Any) -> str:
    """Return the name of a dimension (`x.0`) from Dynamo's source of its size; others as theirs."""
    named = _SIZE.match(source_name(source))
    return f"{argument(named['tensor'])}.{named['dimension']}" if named else ""


def source_name(source: Any) -> str:
    """The name of a source, which is a method before torch 2.10."""
    name = source.name
    return str(name() if callable(name) else name)


def argument(source: str) -> str:
    """Return the name of an argument from Dynamo's name of a source: `L['kwargs']['mask']`."""
    return _ARGUMENT.sub(lambda match: match[1] or match[2], source)


def _interned(stack: Any) -> Iterator[FrameSummary]:
    """The frames of a stack of the structured trace, which writes files as numbers."""
    files = {number: name for name, number in structured.INTERN_TABLE.items()}
    for at in stack:
        file = files.get(at["filename"], "?")
        yield FrameSummary(file, at["line"], at["name"], lookup_line=False)


def _whole(file: str) -> str:
    """The path of a file whose beginning torch has cut, if it has been met before."""
    known = (path for path in graph_breaks.PATHS.values() if path.endswith(file))
    return next(known, file)


def _place(stack: Iterable[FrameSummary]) -> StackFrame | None:
    """The innermost line of the model in a stack, None without one."""
    frames = graph_breaks.user_stack(stack)
    if not frames:
        return None
    place = graph_breaks.place_of(frames)
    text = linecache.getline(graph_breaks.PATHS.get(place.file, ""), place.line).strip()
    return msgspec.structs.replace(place, text=text)


def guard_text(reason: str) -> str:
    """Dynamo's description of a guard, without the lines behind it, which `needed_by` has."""
    code = reason.partition(_USER_STACK)[0].partition("  # ")[0]
    return " ".join(_ID.sub(r"\1", graph_breaks.portable_text(code)).split())


def writes_the_trace() -> bool:
    """Whether the frame that Dynamo compiles now writes the structured trace.

    A backward pass that is compiled between two graphs writes it there, and only because something
    listens: to plain PyTorch, these frames do not exist.
    """
    frame: FrameType | None = sys._getframe(1)
    compiling = False
    while frame is not None:
        file = frame.f_code.co_filename
        compiling = compiling or file.endswith(_CONVERT_FRAME)
        if compiling and _TRACE_WRITER in file:
            return True
        frame = frame.f_back
    return False
