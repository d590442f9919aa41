"""Runs a model up to the line of a graph break, and reads the frames that are live then."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from compilewatch.extras.fixes.worker.minimal.code import COMPREHENSIONS
from compilewatch.records import GraphBreak
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
