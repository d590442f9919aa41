"""Check one model: an object of the caller's in their process, or a named model isolated.

Also the public `fix`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from compilewatch import plugins, records
from compilewatch.api.choose import evaluate_one, one_request
from compilewatch.errors import UsageError
from compilewatch.records import Result

if TYPE_CHECKING:
    from compilewatch.extras.fixes.records import Fix

_ONE_AT_A_TIME = threading.RLock()
"""Dynamo's state is that of the process."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What Dynamo does with a model. `print` shows it as `compilewatch explain` does.

    `result` is the complete record, as a sweep stores it.
    `shapes` are the calls of other sizes, with `vary` or `dynamic={...}`, and what each compiled.
    `files` says where the files that the breaks name lie on this machine, if they were compiled in
    this process. `left` says what the check may have left in this process: it is empty where the
    model ran in a copy of it.
    """

    result: Result
    files: Mapping[str, str] = field(default_factory=dict)
    shapes: records.ShapeSeries | None = None
    left: tuple[str, ...] = ()

    @property
    def status(self) -> records.Status:
        """`pass`, `graph_break`, or why there is no capture: `error`, `oom`, `unsupported` …"""
        return self.result.status

    @property
    def detail(self) -> str:
        """The status in one line."""
        return self.result.detail

    @property
    def recompilations(self) -> tuple[records.Recompilation, ...]:
        """What was compiled again, and why; without `calls`, for a second call like the first."""
        return self.result.recompilations

    @property
    def breaks(self) -> tuple[records.GraphBreak, ...]:
        """The graph breaks: code, reason, file, line, function, source and stack of each."""
        return self.result.breaks

    @property
    def graphs(self) -> int | None:
        """How many graphs were captured; None if the capture failed."""
        return self.result.graphs

    @property
    def captured_share(self) -> float | None:
        """Operators in graphs, divided by all operators; None where they were not counted."""
        return self.result.capture.share if self.result.capture is not None else None

    @property
    def fullgraph(self) -> bool | None:
        """Whether `fullgraph=True` accepts the model; None if that is not known."""
        return self.result.fullgraph.accepted if self.result.fullgraph is not None else None

    @property
    def numerics(self) -> records.Numerics | None:
        """How the compiled results compare with those of eager mode; None without `numerics`."""
        return self.result.numerics

    @property
    def second_call(self) -> records.SecondCall | None:
        """What one more call with equal inputs met, where it differs from the first."""
        return self.result.second_call

    def to_json(self) -> str:
        """Return the result and what is left as JSON."""
        return msgspec.json.encode({"result": self.result, "left": self.left}).decode()

    def __str__(self) -> str:
        from compilewatch.report.terminal import check_text

        return check_text(self.result, self.left)

    def _repr_html_(self) -> str:
        from compilewatch.report.html import frame

        return frame(self.result, self.left)


def check(
    model: Callable[..., Any] | str,
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    calls: Iterable[Any] | None = None,
    mode: str = "eval",
    backend: str = "eager",
    dynamic: bool | Mapping[str, Sequence[int]] | None = None,
    vary: Mapping[str, Any] | None = None,
    numerics: bool = False,
    **keywords: Any,
) -> CheckResult:
    """Compile a model with Dynamo, call it, and say what was captured and what was not.

    `model` is a module or function, which is called with `args` and `keywords`, on their devices;
    in mode `eval` without gradients, in mode `train` with a backward pass through the loss.
    `kwargs` are further keywords of the model, which may have the names of the arguments here.

    The model runs in a copy of this process (a fork), which leaves nothing here. Where there can be
    none, as where a GPU is in use, it runs here, and what it changed is restored; `left` of the
    result says what may not be. That takes the memory of a copy of all tensors.

    With `calls`, the model is called several times in that order, and the result is about all
    calls: each element is a tuple of positional arguments, a dict of keyword arguments, a pair of
    both, or a single argument.

    With `vary={"x": {0: (1, 64)}}`, the model is also called with sizes 1 to 64 of dimension 0 of
    its argument `x`, whose tensor is cut or repeated: both ends, 1, 2, one in the middle, and on
    both sides of each number that guards name. `"batch"` is the first dimension of all tensors, and
    `"x['ids']"` a tensor inside of `x`. Dimensions of one size with one range vary together.
    `dynamic={"x": [0]}` keeps that dimension dynamic (`torch._dynamo.mark_dynamic`), and calls the
    model with up to twice its size. The result is about all calls, in the order of `shapes`.

    `model` as a string is what `compilewatch explain` takes (`BertModel`, `./net.py`,
    `net:factory`): it is built and evaluated in a separate process, with example inputs.

    `backend` and `dynamic` are those of `torch.compile`. With `numerics`, the results of the model
    are also compared with those of eager mode, compiled with Inductor where `backend` is `eager`.

    An exception of the model or the compiler is the result. Raises UsageError for arguments that
    cannot be meant.
    """
    if mode not in set(records.Mode):
        raise UsageError(f"mode is 'eval' or 'train', not {mode!r}")
    marked: list[str] = []
    if isinstance(dynamic, Mapping):
        marked = [f"{name}.{dimension}" for name, of in dynamic.items() for dimension in of]
        dynamic = None
    ranges = dict(_ranges(vary or {}))
    if (marked or ranges) and (isinstance(model, str) or calls is not None):
        raise UsageError("vary and dynamic={...} need a model and the arguments of one call")
    if marked and ranges:
        raise UsageError("vary and dynamic={...} are two checks: make one after the other")
    if isinstance(model, str):
        if args or kwargs or keywords or calls is not None:
            raise UsageError("a model by name gets example inputs: pass the model for your own")
        return _isolated(model, mode, backend, dynamic, numerics=numerics)
    if not callable(model):
        raise UsageError(f"a model is a module, a function or a name, not {type(model).__name__}")
    if twice := set(kwargs or ()) & set(keywords):
        raise UsageError(f"{min(twice)} is given twice: as a keyword and in kwargs")
    keywords = {**keywords, **(kwargs or {})}
    if calls is not None and (args or keywords):
        raise UsageError("pass the arguments of all calls in calls, or those of one call without")
    invocations = [(args, keywords)] if calls is None else [_call(call) for call in calls]
    if not invocations:
        raise UsageError("calls is empty: name at least one call")
    from compilewatch.worker.caller.evaluation import evaluate

    with _ONE_AT_A_TIME:
        result, files, left, shapes = evaluate(
            model,
            invocations,
            mode=records.Mode(mode),
            backend=None if backend == "eager" else backend,
            dynamic=dynamic,
            numerics=numerics,
            ranges=ranges,
            marked=marked,
        )
    return CheckResult(result=result, files=files, shapes=shapes, left=left)


def _ranges(vary: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the bounds of each dimension by its name (`x.0`, `batch`). Raises UsageError."""
    for argument, of in vary.items():
        for dimension, bounds in of.items() if isinstance(of, Mapping) else [("", of)]:
            name = f"{argument}.{dimension}" if dimension != "" else argument
            match bounds:
                case (int(low), int(high)) if 0 <= low <= high:
                    yield name, (low, high)
                case _:
                    raise UsageError(f"vary: {name} is a range such as (1, 64), not {bounds!r}")


def _call(arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of one call, as `check` describes them."""
    if isinstance(arguments, dict):
        return (), arguments
    if not isinstance(arguments, tuple):
        return (arguments,), {}
    if len(arguments) == 2 and isinstance(arguments[0], tuple) and isinstance(arguments[1], dict):
        return cast("tuple[tuple[Any, ...], dict[str, Any]]", arguments)
    return arguments, {}


def _isolated(
    model: str, mode: str, backend: str, dynamic: bool | None, *, numerics: bool
) -> CheckResult:
    suffix = "" if backend == "eager" else f":{backend}"
    result = _named(model, f"dynamo{suffix}", mode, dynamic)
    if numerics and result.status in (records.Status.PASS, records.Status.GRAPH_BREAK):
        result = with_numerics(result, _named(model, f"inductor{suffix}", mode, dynamic))
    return CheckResult(result=result)


def _named(model: str, target: str, mode: str, dynamic: bool | None) -> Result:
    request, settings = one_request(
        model, target=target, mode=mode, dynamic=dynamic, inputs_file=None, flags={"jobs": 1}
    )
    return evaluate_one(request, settings)


def with_numerics(captured: Result, compiled: Result) -> Result:
    """Return Dynamo's result with what a target says that compares the same model's results.

    A graph break stays the status of a mismatch; an error of that target replaces it.
    """
    if compiled.numerics is None:
        return msgspec.structs.replace(
            captured,
            status=compiled.status,
            phase=compiled.phase,
            detail=f"with the target {compiled.request.target.name}: {compiled.detail}",
            error=compiled.error,
        )
    differs = compiled.status is records.Status.MISMATCH and captured.status is records.Status.PASS
    return msgspec.structs.replace(
        captured,
        numerics=compiled.numerics,
        status=records.Status.MISMATCH if differs else captured.status,
        detail=compiled.detail if differs else captured.detail,
    )


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
    has a separate process, so that nothing of this process changes. `max_evaluations` (24) and
    `max_seconds` (600) limit the search; without `rewrites`, nothing is tried that edits the source
    of a library.

    Of what it returns, `status` is `verified` (single graph), `improves` (fewer graph breaks),
    `captured` (a single graph that the script rejected), `nothing`, `no_break` or `no_verdict`,
    `code` is the context manager to paste, `script` what verified it, and `holds_if` the conditions
    that no script can try. `print` shows it as `compilewatch fix` does.

    Raises UsageError for arguments that cannot be meant.
    """
    name = model if isinstance(model, str) else _name_of(model)
    if mode not in set(records.Mode):
        raise UsageError(f"mode is 'eval' or 'train', not {mode!r}")
    request, settings = one_request(
        name, target="dynamo", mode=mode, dynamic=dynamic, inputs_file=inputs, flags={"jobs": 1}
    )
    result: Fix = plugins.load("compilewatch.extras.fixes.fixing:find_fix", "fix")(
        request,
        settings,
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
        "top of a file, because each evaluation builds it anew in a separate process"
    )
