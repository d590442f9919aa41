"""Traces of real calls: what breaks cost and where, operator statistics, and their files."""

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile, record_function
from torch.profiler._trace_validator import validate_trace

from compilewatch.extras.profiles.messages import STACKS_FILE, TRACE_FILE
from compilewatch.extras.profiles.records import operators_csv
from compilewatch.extras.profiles.worker import measuring
from compilewatch.extras.profiles.worker.measuring import NO_FRAME, Division
from compilewatch.extras.profiles.worker.subject import Inductor
from tests.cases.breaks import CASES, Case, line_of
from tests.integration.worker.targets.conftest import MakeSubject
from tests.integration.worker.targets.conftest import make_subject as make_subject

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:seen")]

BREAKING = [
    pytest.param(case, id=case.name, marks=pytest.mark.matrix if number % 3 else ())
    for number, case in enumerate(CASES)
    if any(b.code != "skipped_frame" for b in case.breaks)
]
"""Where torch reports a break; a frame without operations is skipped without one."""

MakeInductor = Callable[[Callable[[], nn.Module]], Inductor]

untraceable = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
SLEEP_SECONDS = 0.02


@pytest.fixture
def make_inductor(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeInductor]:
    """A compiled model that has been called. Its graphs call torch's kernels: no C++ compiler."""
    from torch._inductor import config

    monkeypatch.setattr("compilewatch.worker.targets.inductor.prepare_tool_chain", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def make(build: Callable[[], nn.Module]) -> Inductor:
        made = Inductor(make_subject(build))
        made.first_call()
        made.call()
        return made

    with config.patch(fallback_by_default=True):
        yield make
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def cost_at(compiled: Inductor, found: Division, mark: str) -> float:
    """What the frames that end at a marked line spend outside of graphs."""
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, start=1) if text.endswith(f"# break: {mark}"))
    breaks = compiled.breaks()
    costs = found.costs(breaks, compiled.ends(breaks))
    return sum(cost.seconds for cost in costs if cost.line == line)


class Sleeping(nn.Module):
    """Two graph breaks; the model waits at one of them."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.waits = [SLEEP_SECONDS if at == n else 0.0 for n in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        time.sleep(self.waits[0])  # break: first
        x = self.linear(x)
        time.sleep(self.waits[1])  # break: second
        return self.linear(x)


class Given(Sleeping):
    """A loop with a break, for which Dynamo gives up the whole frame: its code runs as Python."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.linear(x)
            time.sleep(SLEEP_SECONDS / 2)  # break: given up
        return x


@pytest.mark.parametrize("case", BREAKING)
def test_the_parts_sum_to_the_call_and_each_break_has_a_frame(
    case: Case, make_inductor: MakeInductor
) -> None:
    """Runs each model: the only test that shows that torch names its frames as we expect."""
    compiled = make_inductor(case.build)
    found = measuring.divided(compiled.call, 1)
    assert found.nanoseconds.total() == found.total
    breaks = compiled.breaks()
    ends = compiled.ends(breaks)
    assert {breaks[at].line for at in ends.values()} == {b.line for b in breaks}
    # Every frame that runs is one that was captured or that a break is known of.
    known = {*compiled.captured.captured, *compiled.captured.frames, NO_FRAME}
    assert {owner for owner, _ in found.nanoseconds} <= known
    marked = {line_of(each.mark) for each in case.breaks if each.mark}
    assert marked <= {b.line for b in breaks}


@untraceable
@pytest.mark.parametrize(("at", "mark", "other"), [(0, "first", "second"), (1, "second", "first")])
def test_a_wait_at_a_break_is_a_cost_of_its_line(
    at: int, mark: str, other: str, make_inductor: MakeInductor
) -> None:
    compiled = make_inductor(lambda: Sleeping(at))
    found = measuring.divided(compiled.call, 3)
    assert cost_at(compiled, found, mark) >= SLEEP_SECONDS
    assert cost_at(compiled, found, mark) > cost_at(compiled, found, other)
    assert found.nanoseconds["0/0", "graph"] > 0
    given_up = make_inductor(lambda: Given(at))
    found = measuring.divided(given_up.call, 1)
    assert cost_at(given_up, found, "given up") >= SLEEP_SECONDS


def test_the_trace_is_valid_and_its_table_is_that_of_key_averages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts exactly and times to the microsecond, of the same recording."""
    made: list[Any] = []

    def recording(**arguments: Any) -> Any:
        made.append(profile(**arguments))
        return made[-1]

    def call() -> Tensor:
        with record_function("model"):
            return torch.ones(64, 64) @ torch.ones(64, 64)

    monkeypatch.setattr(measuring, "profile", recording)
    operators = measuring.traced(call, 4, tmp_path)
    table = operators_csv(operators).decode().splitlines()
    rows = {row["name"]: row for row in csv.DictReader(table)}
    averages = {event.key: event for event in made[0].key_averages()}
    assert rows.keys() == averages.keys()
    for name, event in averages.items():
        assert int(rows[name]["calls"]) == event.count
        for column, total in (
            ("self_cpu_time_us", event.self_cpu_time_total),
            ("cpu_time_total_us", event.cpu_time_total),
        ):
            assert float(rows[name][column]) == pytest.approx(total, abs=1)
    own = sum(operator.self_cpu_time_us for operator in operators)
    called = next(operator for operator in operators if operator.name == measuring.CALL)
    assert own == pytest.approx(called.cpu_time_total_us, rel=0.001)
    assert called.calls == 4
    assert validate_trace(str(tmp_path / TRACE_FILE)) == (True, [])
    names = [e.get("name") for e in json.loads((tmp_path / TRACE_FILE).read_text())["traceEvents"]]
    assert names.count("model") == 4
    assert "test_traces.py" in (tmp_path / STACKS_FILE).read_text()
