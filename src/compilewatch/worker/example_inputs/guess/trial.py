"""One call with guessed inputs, in a fork of this process, and what its failure tells."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import signal
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import FrameType
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from compilewatch.contract.failures import RecordedError, error_code, one_line, type_names
from compilewatch.records import Record
from compilewatch.worker import forked
from compilewatch.worker.example_inputs.files import converted, fake_values
from compilewatch.worker.example_inputs.guess.layers import is_known
from compilewatch.worker.subject import ExampleInputs

MESSAGE = 2000
"""How much of a message is kept, in characters."""


SECONDS_ON_REAL = 30
"""How long a call with real tensors may take that confirms a guess."""


class ComparedNumbers(Record, frozen=True, kw_only=True):
    """Numbers that the model compared before it gave up; `kind`: `equal`, `multiple` or `rank`."""

    have: int
    want: int
    kind: str = "equal"


class Trial(Record, frozen=True, kw_only=True):
    """What became of a call. `calls` counts the modules that had been called when it failed.

    `layer` is the name of the module in which it failed, as `named_modules` has it, `shapes` those
    of its arguments. `missing` are arguments that were None where the forward used them.
    """

    passed: bool = False
    line: str = ""
    message: str = ""
    code: str = ""
    names: tuple[str, ...] = ()
    calls: int = 0
    layer: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    statement: str = ""
    comparisons: tuple[ComparedNumbers, ...] = ()
    missing: tuple[str, ...] = ()


def tried(module: nn.Module, inputs: ExampleInputs, mode: Any, *, gradients: bool = False) -> Trial:
    """Call a module with real inputs, made fake under `mode`, so that the call leaves nothing.

    Where no fork is possible, the call is made here: then `phases` builds the model again.
    """

    def call() -> Trial:
        return _called(module, inputs, mode, gradients)

    if not forked.possible():
        return call()
    try:
        return forked.in_fork(call, Trial, [])
    except RecordedError as error:  # SystemExit of the model's code
        return Trial(line=error.line, message=str(error), names=tuple(error.names))


def tried_on_real(
    build: Callable[[], nn.Module], inputs: ExampleInputs, *, gradients: bool
) -> Trial | None:
    """Build a module with real tensors and call it once with real inputs; None if it takes long.

    That is in a fork, where one is possible.
    """

    def call() -> Trial:
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(SECONDS_ON_REAL)
        try:
            with torch.compiler.set_stance("force_eager"):  # functions that the model compiles
                return _called(build(), copy.deepcopy(inputs), None, gradients)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    if not forked.possible():
        return call()
    try:
        trial = forked.in_fork(call, Trial, [])
    except RecordedError as error:  # of the constructor, or SystemExit
        trial = Trial(line=error.line, message=str(error), names=tuple(error.names))
    return None if TooLongError.__name__ in f"{trial.names} {trial.line}" else trial


class TooLongError(Exception):
    """A call takes longer than `SECONDS_ON_REAL`."""


def _too_long(*_: object) -> None:
    raise TooLongError


def _called(module: nn.Module, inputs: ExampleInputs, mode: Any, gradients: bool) -> Trial:
    stack: list[tuple[nn.Module, tuple[tuple[int, ...], ...]]] = []
    failed: list[tuple[nn.Module, tuple[tuple[int, ...], ...]]] = []
    calls = 0

    def before(called: nn.Module, args: Any) -> None:
        nonlocal calls
        calls += 1
        shapes = tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))
        stack.append((called, shapes))

    def after(called: nn.Module, *_: Any) -> None:
        while stack and stack.pop()[0] is not called:
            pass

    hooks = [register_module_forward_pre_hook(before), register_module_forward_hook(after)]
    try:
        args, kwargs = inputs.args, inputs.kwargs
        if mode is not None:
            args, kwargs = fake_values(args, mode), fake_values(kwargs, mode)
        else:
            args, kwargs = _beside(module, (args, kwargs))
        with mode or nullcontext(), nullcontext() if gradients else torch.no_grad():
            module(*args, **kwargs)
        return Trial(passed=True, calls=calls)
    except Exception as error:  # noqa: BLE001  (whatever the model's code raises)
        failed = stack[-1:]
        return _failure(error, module, calls, failed)
    finally:
        for hook in hooks:
            hook.remove()


def _beside(module: nn.Module, values: Any) -> Any:
    """Return values on the device of a module's parameters."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    if device.type in ("cpu", "meta"):
        return values
    return converted(values, lambda tensor: tensor.to(device), device)


def _failure(error: Exception, module: nn.Module, calls: int, failed: list[Any]) -> Trial:
    layer, shapes = failed[0] if failed else (None, ())
    names = {submodule: name for name, submodule in module.named_modules()}
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if not _of_torch(f)]
    lines = dict(traceback.walk_tb(error.__traceback__))
    frames = [f for f in frames if "example_inputs/guess" not in f.f_code.co_filename]
    comparisons: list[ComparedNumbers] = []
    for frame in frames[-3:][::-1]:
        comparisons += _comparisons(frame, lines[frame])
    statement = ""
    if frames:
        last = frames[-1]
        statement = linecache.getline(last.f_code.co_filename, lines[last]).strip()
    return Trial(
        line=one_line(error),
        message=str(error)[:MESSAGE],
        code=error_code(error),
        names=tuple(sorted(type_names(error))),
        calls=calls,
        layer=names.get(layer) if layer is not None and is_known(layer) else None,
        shapes=shapes,
        statement=statement[:200],
        comparisons=tuple(comparisons),
        missing=_missing(frames, lines, module),
    )


def _of_torch(frame: FrameType) -> bool:
    return "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename.startswith("<")


def _missing(
    frames: list[FrameType], lines: dict[FrameType, int], module: nn.Module
) -> tuple[str, ...]:
    """The arguments of the forward that are None, if the failing line is about a None."""
    code = getattr(inspect.unwrap(module.forward), "__code__", None)
    for frame in frames:
        if frame.f_code is code:
            absent = [n for n, v in frame.f_locals.items() if v is None]
            line = linecache.getline(frame.f_code.co_filename, lines[frame])
            mentioned = [n for n in absent if n in line]
            return tuple(dict.fromkeys([*mentioned, *absent]))
    return ()


def _comparisons(frame: FrameType, line: int) -> Iterator[ComparedNumbers]:
    for test in _tests(frame, line):
        for node in ast.walk(test):
            if isinstance(node, ast.Compare) and len(node.ops) >= 1:
                sides = [node.left, *node.comparators]
                for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
                    yield from _compared(frame, left, op, right)


def _compared(
    frame: FrameType, left: ast.expr, op: ast.cmpop, right: ast.expr
) -> Iterator[ComparedNumbers]:
    a, b = _evaluated(frame, left), _evaluated(frame, right)
    remainder = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod)
    if remainder and isinstance(left, ast.BinOp):
        dividend, divisor = _evaluated(frame, left.left), _evaluated(frame, left.right)
        if isinstance(dividend, int) and isinstance(divisor, int):
            yield ComparedNumbers(have=dividend, want=divisor, kind="multiple")
        return
    kind = "rank" if _is_rank(left) or _is_rank(right) else "equal"
    if isinstance(op, ast.In) and isinstance(a, int) and isinstance(b, list | tuple | set):
        for allowed in b:
            yield ComparedNumbers(have=a, want=int(allowed), kind=kind)
        return
    pairs = [(a, b)]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        pairs = list(zip(a, b, strict=False))
    for have, want in pairs:
        if type(have) is int and type(want) is int and have != want:
            yield ComparedNumbers(have=have, want=want, kind=kind)
            yield ComparedNumbers(have=want, want=have, kind=kind)


def _is_rank(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return "ndim" in text or ".dim()" in text or text.startswith("len(")


_EVALUATED = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator,
    ast.unaryop, ast.Slice, ast.Tuple, ast.expr_context, ast.Call,
)  # fmt: skip
_CALLED = frozenset({"len", "size", "dim", "tuple", "list", "int"})


def _evaluated(frame: FrameType, node: ast.expr) -> Any:
    """The value of an expression of the model's own code, if it only reads numbers."""
    for inner in ast.walk(node):
        if not isinstance(inner, _EVALUATED):
            return None
        if isinstance(inner, ast.Call):
            name = (
                inner.func.attr
                if isinstance(inner.func, ast.Attribute)
                else getattr(inner.func, "id", "")
            )
            if name not in _CALLED:
                return None
    try:
        code = compile(ast.Expression(node), "<guess>", "eval")
        return eval(code, frame.f_globals, dict(frame.f_locals))
    except Exception:  # noqa: BLE001  (whatever attributes and operators of the model raise)
        return None


def _tests(frame: FrameType, line: int) -> Iterator[ast.expr]:
    """The conditions that the failing statement of a frame depends on."""
    try:
        lines, start = inspect.getsourcelines(frame.f_code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    at = line - max(start, 1) + 1
    for node in ast.walk(tree):
        end = getattr(node, "end_lineno", None)
        if end is None or not node.lineno <= at <= end:  # type: ignore[attr-defined]
            continue
        if isinstance(node, ast.Assert) or _raises(node):
            yield node.test
        elif (call := _assertion(node)) is not None:
            yield call.args[0]


def _raises(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and any(
        isinstance(statement, ast.Raise) for statement in node.body
    )


def _assertion(node: ast.AST) -> ast.Call | None:
    """The call of a function that asserts something, such as `torch._assert`."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not call.args:
        return None
    return call if "assert" in ast.unparse(call.func) else None
