"""`compilewatch.check` on real modules: what it says, and what it leaves in this process."""

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import convert_frame, pgo
from torch._dynamo.utils import counters
from torch.nn.modules import module as module_hooks

import compilewatch
from compilewatch.errors import UsageError
from compilewatch.records import Phase, Status
from compilewatch.worker.caller import evaluation
from compilewatch.worker.targets.inductor import InductorTarget
from tests.cases.breaks import CASES, line_of

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["copy", "here"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The model runs in a copy of the process, or in the process, as where a GPU is in use."""
    if request.param == "here":
        monkeypatch.setattr(evaluation, "hindrance", lambda _: "a test has no fork")
    return str(request.param)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "hindrance", lambda _: "a test has no fork")


@pytest.mark.usefixtures("where")
def test_what_the_caller_has_compiled_is_not_compiled_again() -> None:
    compiled_graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        compiled_graphs.append(graph)
        return graph.forward

    def function(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    compiled = torch.compile(function, backend=backend)
    compiled(torch.ones(2, 3))
    before = len(compiled_graphs)
    counted = {name: dict(value) for name, value in counters.items()}
    frames, state = convert_frame.FRAME_COUNTER, pgo._CODE_STATE
    code = function.__code__

    found = compilewatch.check(function, calls=[torch.ones(n, 3) for n in (2, 5, 7)])
    again = compilewatch.check(compiled, torch.ones(2, 3))

    assert (found.status, again.status) == (Status.GRAPH_BREAK, Status.GRAPH_BREAK)
    assert function.__code__ is code
    assert {name: dict(value) for name, value in counters.items()} == counted
    assert frames == convert_frame.FRAME_COUNTER
    assert pgo._CODE_STATE is state
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(torch.ones(2, 3))
    assert len(compiled_graphs) == before


@pytest.mark.usefixtures("where")
def test_what_dynamo_gave_up_before_is_tried_anew() -> None:
    (case,) = [case for case in CASES if case.name == "left_alone"]
    model = case.build().eval()
    torch.compile(model, backend="eager")(torch.ones(3, 4))
    assert len(compilewatch.check(model, torch.ones(3, 4)).breaks) == len(case.breaks)


@pytest.mark.usefixtures("here")
def test_settings_logs_warnings_and_hooks_are_left_as_they_were() -> None:
    def trace(*_: Any) -> None:
        return None

    def settings() -> tuple[Any, ...]:
        loggers = {
            name: (logger.level, list(logger.handlers), list(logger.filters))
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger) and name.startswith("torch")
        }
        hooks = {
            name: len(value)
            for name, value in vars(module_hooks).items()
            if name.startswith("_global_forward")
        }
        config, filters = torch._dynamo.config.get_config_copy(), list(warnings.filters)
        return loggers, hooks, config, filters, sys.gettrace(), torch.is_grad_enabled()

    compilewatch.check(branching, torch.ones(2))  # imports make loggers
    before = settings()
    sys.setprofile(trace)
    try:
        compilewatch.check(branching, torch.ones(2))
        assert sys.getprofile() is trace
    finally:
        sys.setprofile(None)
    assert settings() == before


@pytest.mark.usefixtures("here")
def test_no_function_of_torch_is_replaced_while_the_model_runs() -> None:
    def functions() -> dict[str, Any]:
        return {
            f"{name}.{attribute}": value
            for name, module in list(sys.modules.items())
            if name.split(".")[0] == "torch" and isinstance(module, types.ModuleType)
            for attribute, value in list(vars(module).items())
            if issubclass(type(value), types.FunctionType | type)
        }

    inside = contextlib.ExitStack()  # of Python's own class, so it is not restored

    @torch.compiler.disable
    def look() -> None:
        inside.seen = functions()  # type: ignore[attr-defined]

    def function(x: Tensor) -> Tensor:
        look()
        return x + 1

    compilewatch.check(function, torch.ones(2))  # imports what a check needs
    before = functions()
    inside.seen = {}  # type: ignore[attr-defined]
    compilewatch.check(function, torch.ones(2))
    seen: dict[str, Any] = inside.seen  # type: ignore[attr-defined]
    assert seen
    assert [name for name, value in before.items() if seen.get(name) is not value] == []


VERDICTS = """
import json, torch, compilewatch
from tests.cases.breaks import CASES
for case in CASES[::3]:
    result = compilewatch.check(case.build(), torch.ones(3, 4))
    later = len(result.second_call.breaks) if result.second_call is not None else 0
    breaks = sorted((b.line, b.code, b.occurrences) for b in result.breaks)
    print(json.dumps([case.name, breaks, result.graphs, result.fullgraph, later]))
"""


def test_verdicts_are_those_of_plain_torch_in_one_process() -> None:
    """Each third case, one after another in one process; a worker judges all of them."""
    command = [sys.executable, "-c", VERDICTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert said == [
        [
            case.name,
            sorted([line_of(b.mark), b.code, b.occurrences] for b in case.breaks),
            case.graphs,
            case.fullgraph,
            len(case.later),
        ]
        for case in CASES[::3]
    ]


@pytest.mark.usefixtures("where")
def test_recompilations_name_the_guard_and_the_values() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    found = compilewatch.check(scaled, calls=[torch.ones(n, 3) for n in (1, 2, 7)])
    (again,) = found.recompilations
    assert (again.call, again.function) == (2, "scaled")
    assert again.line == scaled.__code__.co_firstlineno
    assert again.guards == ("0/0: tensor 'x' size mismatch at index 0. expected 1, actual 2",)
    assert (found.status, found.graphs) == (Status.PASS, 2)
    assert "call 2  first seen as static x.0, " in str(found)


class Counter(nn.Module):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


def test_a_model_that_reaches_the_limit_of_recompilations_does_not_pass() -> None:
    found = compilewatch.check(Counter(), calls=[torch.ones(2)] * 10)
    assert (found.status, len(found.recompilations)) == (Status.GRAPH_BREAK, 7)
    assert [(graph_break.code, graph_break.function) for graph_break in found.breaks] == [
        ("GB0039", "forward")
    ]


class Skipped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] == 1 else x * 2


def test_a_function_that_dynamo_skips_for_good_is_named() -> None:
    result = compilewatch.check(Skipped(), torch.ones(4, 3), vary={"x": {0: (1, 64)}})
    assert "computes nothing, and Dynamo runs all in eager mode" in result.detail


def test_a_break_and_an_error_of_a_later_call_count() -> None:
    def rare(x: Tensor, verbose: bool) -> Tensor:
        if verbose:
            print("rare")
        return x + 1

    quiet = compilewatch.check(rare, calls=[(torch.ones(2), False)])
    both = compilewatch.check(rare, calls=[(torch.ones(2), False), (torch.ones(2), True)])
    assert (quiet.status, quiet.breaks) == (Status.PASS, ())
    assert both.status is Status.GRAPH_BREAK
    assert [found.line for found in both.breaks] == [rare.__code__.co_firstlineno + 2]
    failed = compilewatch.check(nn.Linear(3, 3), calls=[torch.ones(2, 3), torch.ones(2, 5)])
    assert (failed.status, failed.result.phase) == (Status.ERROR, Phase.COMPILE)
    assert "later call" in failed.detail


def branching(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def doubled(x: Tensor, *, times: int = 2) -> Tensor:
    return x * times


class Caller:
    count = 0

    def method(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count

    def named_alike(self, x: Tensor, mode: str, backend: int, dynamic: int, calls: int) -> Tensor:
        return x.reshape(-1) * backend * dynamic * calls if mode == "flat" else x


def test_any_callable_can_be_checked() -> None:
    caller = Caller()
    kinds: list[Callable[..., Any]] = [
        lambda x: x + 1,
        functools.partial(doubled, times=3),
        caller.method,
        torch.relu,
        torch.compile(nn.Linear(3, 3), backend="eager"),
    ]
    for model in kinds:
        found = compilewatch.check(model, torch.ones(2, 3, requires_grad=True))
        assert (found.status, found.graphs) == (Status.PASS, 1)
    kwargs = {"mode": "flat", "backend": 2, "dynamic": 3, "calls": 4}
    found = compilewatch.check(caller.named_alike, torch.ones(2), kwargs=kwargs)
    assert (found.status, found.graphs, caller.count) == (Status.PASS, 1, 0)
    # Dynamo does not trace a scripted module, so nothing is captured.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))
    found = compilewatch.check(scripted, torch.ones(2, 3))
    assert (found.status, found.graphs) == (Status.GRAPH_BREAK, 0)


class Sized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.shape[0]


def test_dynamic_has_three_values() -> None:
    calls = [torch.ones(n, 3) for n in (2, 5, 7)]
    again = {
        dynamic: len(compilewatch.check(Sized(), calls=calls, dynamic=dynamic).recompilations)
        for dynamic in (None, True, False)
    }
    assert again == {None: 1, True: 0, False: 2}
    result = compilewatch.check(Sized(), calls[0], dynamic=False).result
    assert result.request.target.mode_label == "eval/static"


class Compiled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_a_module_that_compiled_itself_is_compiled_anew() -> None:
    model = Compiled()
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    found = compilewatch.check(model, torch.ones(2))
    assert (found.status, found.graphs, found.fullgraph) == (Status.PASS, 1, True)
    assert model._compiled_call_impl is compiled


@pytest.mark.usefixtures("where")
def test_the_trace_of_a_check_adds_no_breaks() -> None:
    """A backward pass is compiled between two graphs, where Dynamo still listens."""
    linear = nn.Linear(4, 4)

    def backward_inside(x: Tensor) -> Tensor:
        linear(x).sum().backward()
        return linear(x) * 2

    found = compilewatch.check(backward_inside, torch.ones(2, 4), mode="train")
    first = backward_inside.__code__.co_firstlineno
    assert [graph_break.line for graph_break in found.breaks] == [first + 1]
    assert found.second_call is None


def test_a_model_that_ends_its_process_is_a_crash() -> None:
    def ends(_: Tensor) -> None:
        os._exit(3)

    found = compilewatch.check(ends, torch.ones(2))
    assert (found.status, found.detail) == (
        Status.CRASHED,
        "the model ended its process with exit code 3",
    )


def test_a_copy_that_waits_for_the_parent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "IDLE_SECONDS", 1.0)
    parent = os.getpid()

    def waits(x: Tensor) -> Tensor:
        if os.getpid() != parent:
            time.sleep(60)
        return x + 1

    found = compilewatch.check(waits, torch.ones(2))
    assert found.status is Status.GRAPH_BREAK
    (left,) = found.left
    assert "did nothing for 1 s" in left
    assert left in " ".join(str(found).split())
    assert left in found._repr_html_()
    assert json.loads(found.to_json())["left"] == [left]


THREADS = """
import threading, torch, compilewatch

def check(mode):
    result = compilewatch.check(linear, torch.ones(600, 600), mode=mode)
    assert (result.status.value, result.left) == ("pass", ()), result

called = []

def once(x):
    if not called:
        print("once")
        called.append(True)
    return x + 1

linear = torch.nn.Linear(600, 600)
torch.set_num_threads(2)  # upon which torch starts a thread in each copy
result = compilewatch.check(once, torch.ones(3, 4))
assert (len(result.breaks), result.fullgraph) == (1, False), result
(torch.ones(600, 600) @ torch.ones(600, 600)).sum()
torch.ones(3, requires_grad=True).sum().backward()
stop = threading.Event()
threading.Thread(target=stop.wait).start()
try:
    check("eval")
    check("train")
    torch.compile(linear, backend="eager")(torch.ones(2, 600))
    torch._dynamo.reset()
    check("train")
finally:
    stop.set()
"""


def test_a_process_that_has_compiled_and_has_threads_can_be_copied() -> None:
    """OpenMP's, autograd's and the caller's own; other tests may have started more in this one.

    No evaluation of a check sees what another one has changed there, either.
    """
    subprocess.run([sys.executable, "-c", THREADS], check=True)


def test_what_the_model_raises_is_the_result() -> None:
    def leaves(_: Tensor) -> None:
        sys.exit(3)

    def fails(_: Tensor) -> None:
        raise ValueError("not like this")

    left = compilewatch.check(leaves, torch.ones(2))
    failed = compilewatch.check(fails, torch.ones(2))
    assert (left.status, left.result.phase) == (Status.ERROR, Phase.EAGER)
    assert (failed.status, failed.result.phase) == (Status.ERROR, Phase.EAGER)
    assert "not like this" in failed.detail


def test_an_error_of_the_compiler_is_not_the_models() -> None:
    def breaks(*_: Any) -> Any:
        raise RuntimeError("no such operator")

    def runs_badly(_graph: Any, _inputs: Any) -> Any:
        return breaks

    assert compilewatch.check(doubled, torch.ones(2), backend="inductor").status is Status.PASS
    for backend in (breaks, runs_badly):
        torch._dynamo.register_backend(backend, name=backend.__name__)
        given: dict[str, Any] = {"backend": backend.__name__, "numerics": backend is runs_badly}
        found = compilewatch.check(nn.Linear(4, 4), torch.ones(2, 4), **given)
        assert (found.status, found.result.phase) == (Status.ERROR, Phase.COMPILE)
        assert backend is breaks or "no such operator" in found.detail


class Different(nn.Module):
    """Computes something else where it is compiled."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if torch.compiler.is_compiling() else x


def test_numerics_compares_all_calls_and_gradients_with_eager_mode() -> None:
    linear, sizes = nn.Linear(4, 4), [torch.ones(n, 4) for n in (2, 3)]
    same = compilewatch.check(linear, calls=sizes, mode="train", backend="aot_eager", numerics=True)
    assert same.status is Status.PASS
    assert same.numerics is not None
    assert same.numerics.matches
    assert linear.weight.grad is None
    differs = compilewatch.check(Different(), calls=sizes, backend="aot_eager", numerics=True)
    assert differs.status is Status.MISMATCH
    assert "call 1: output: off" in differs.detail
    assert differs.numerics is not None
    assert [each.partition(":")[0] for each in differs.numerics.mismatches] == ["call 1", "call 2"]
    # What is random is not compared, and a graph break is not hidden by a mismatch.
    given: dict[str, Any] = {"mode": "train", "backend": "aot_eager", "numerics": True}
    drawn = compilewatch.check(nn.Dropout(), torch.ones(64), **given)
    assert drawn.numerics is not None
    assert drawn.status is Status.PASS
    assert compilewatch.check(linear, torch.ones(2, 4)).numerics is None


def test_the_inputs_of_a_bad_call_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InductorTarget, "missing", lambda _: "no C++ compiler")
    x, model = torch.ones(2), Compiled()
    with torch._subclasses.fake_tensor.FakeTensorMode():
        fake = torch.ones(2)

    def inside(x: Tensor) -> Tensor:
        compilewatch.check(model, x)
        return x + 1

    async def coroutine(x: Tensor) -> Tensor:
        return x

    exported = torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),)).module()
    wrong: dict[str, Callable[[], Any]] = {
        "a model is a module": lambda: compilewatch.check(3),  # type: ignore[arg-type]
        "mode": lambda: compilewatch.check(doubled, mode="test"),
        "calls": lambda: compilewatch.check(doubled, calls=[]),
        "call": lambda: compilewatch.check(doubled, x, calls=[x]),
        "a model by name": lambda: compilewatch.check("BertModel", x),
        "twice": lambda: compilewatch.check(doubled, x, times=2, kwargs={"times": 3}),
        r"torch\.compile": lambda: torch.compile(inside, backend="eager")(x),
        "Inductor: no C": lambda: compilewatch.check(model, x, numerics=True),
        "an async function": lambda: compilewatch.check(coroutine, x),
        "pass a list": lambda: compilewatch.check(doubled, (row for row in [x])),
        "has no modes": lambda: compilewatch.check(exported, torch.ones(2, 4)),
        "fake tensors do not have": lambda: compilewatch.check(model, fake, numerics=True),
    }
    for message, call in wrong.items():
        with pytest.raises(UsageError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_it_prints_what_explain_prints_and_is_a_frame_in_a_notebook() -> None:
    found = compilewatch.check(branching, torch.ones(3, 4))
    text, page = str(found), found._repr_html_()
    (graph_break,) = found.breaks
    assert f"{graph_break.file}:{graph_break.line} in branching" in text
    assert f"{graph_break.file}:{graph_break.line}" in page
    assert page.startswith("<iframe sandbox")
    assert "<script" not in page


def test_a_name_is_evaluated_in_a_separate_process(tmp_path: Path) -> None:
    """Starts a worker: only that shows that the isolated way works from Python."""
    (tmp_path / "net.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(3, 4)\n")
    found = compilewatch.check(f"{tmp_path}/net.py")
    assert (found.status, found.graphs, found.fullgraph) == (Status.PASS, 1, True)
    assert found.result.tier.value == "fake"
