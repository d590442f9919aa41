"""Times, peak memory, operators, and the division of calls on slices written down by hand."""

import gc
import random
import time
from collections import Counter

import pytest
import torch

from compilewatch.extras.profiles.worker import measuring
from compilewatch.extras.profiles.worker.measuring import NO_FRAME, Division, Slice, divide
from tests import factories

pytestmark = pytest.mark.torch

LARGE = 100_000_000
"""Numbers of four bytes: 381 MiB."""


def test_each_call_has_a_peak_of_its_own() -> None:
    large, small = (
        measuring.peak_memory(lambda count=count: torch.ones(count))  # type: ignore[misc]
        for count in (LARGE, LARGE // 100)
    )
    assert large.call_peak_bytes == pytest.approx(4 * LARGE, rel=0.05)
    assert (large.rss_peak_bytes or 0) > 4 * LARGE
    assert small.call_peak_bytes is not None
    assert small.call_peak_bytes < LARGE


def test_a_round_ends_with_its_calls_or_its_time() -> None:
    calls: list[bool] = []

    def waits() -> None:
        calls.append(gc.isenabled())
        time.sleep(0.02)

    found = measuring.measure(waits, 3, 60.0)
    assert len(found.wall_seconds) == len(found.cpu_seconds) == len(calls) == 3
    assert min(found.wall_seconds) >= 0.02 > max(found.cpu_seconds)  # waiting is no CPU time
    assert (calls, gc.isenabled()) == ([False] * 3, True)  # the garbage collector is off
    assert len(measuring.measure(waits, 1000, 0.05).wall_seconds) < 10


CALL = Slice(0, 1000, "compilewatch::call")

BROKEN = [
    Slice(10, 40, "TorchDynamo Cache Lookup"),
    Slice(60, 900, "Torch-Compiled Region: 0/0"),
    Slice(70, 10, "AOTDispatcher Runtime Wrapper Prologue"),
    Slice(100, 200, "## Call CompiledFxGraph fabc ##"),
    Slice(120, 50, "aten::addmm"),
    Slice(500, 30, "aten::nonzero"),
    Slice(505, 10, "aten::empty"),
    Slice(600, 20, "TorchDynamo Cache Lookup"),
    Slice(630, 300, "Torch-Compiled Region: 1/0"),
    Slice(640, 250, "## Call CompiledFxGraph fdef ##"),
]
"""A call that breaks once: the code that resumes (1/0) runs inside the one before it (0/0)."""

A, B = Slice(100, 100, "aten::a"), Slice(150, 100, "aten::b")


@pytest.mark.parametrize(
    ("call", "slices", "expected"),
    [
        (
            CALL,
            random.Random(0).sample(BROKEN, len(BROKEN)),
            {
                NO_FRAME: {"guard": 40, "python": 60},
                "0/0": {"graph": 200, "eager": 30, "guard": 20, "python": 350},
                "1/0": {"graph": 250, "python": 50},
            },
        ),
        # An annotation has no name.
        (
            CALL,
            [Slice(100, 100, ""), Slice(110, 20, "aten::add")],
            {NO_FRAME: {"eager": 20, "python": 980}},
        ),
        # One does not nest, one outlives the call, one is of the call before.
        (CALL, [A, B], {NO_FRAME: {"eager": 100, "python": 900}}),
        (CALL, [Slice(900, 500, "aten::a")], {NO_FRAME: {"eager": 100, "python": 900}}),
        (Slice(500, 1000, "compilewatch::call"), [A], {NO_FRAME: {"python": 1000}}),
    ],
)
def test_a_call_is_divided(
    call: Slice, slices: list[Slice], expected: dict[str, dict[str, int]]
) -> None:
    assert divide(call, slices) == Division(total=1000, nanoseconds=flat(expected))


def flat(nanoseconds: dict[str, dict[str, int]]) -> Counter[tuple[str, str]]:
    return Counter(
        {(owner, kind): n for owner, kinds in nanoseconds.items() for kind, n in kinds.items()}
    )


def test_a_break_costs_what_its_frame_does_outside_of_graphs() -> None:
    nanoseconds = {
        "": {"guard": 50, "python": 50},
        "0/0": {"graph": 300, "python": 200, "guard": 100},
        "1/0": {"graph": 100, "eager": 100},
        "2/0": {"graph": 50, "python": 50},
    }
    division = Division(total=1000, nanoseconds=flat(nanoseconds))
    breaks = (factories.graph_break(line=7), factories.graph_break(line=9))
    first, second = division.costs(breaks, {"0/0": 0, "1/0": 1})
    assert (first.line, first.compile_ids) == (7, ("0/0",))
    assert first.seconds == pytest.approx(3e-7)
    assert first.share == pytest.approx(0.3)
    assert second.line == 9
    assert second.eager_seconds == pytest.approx(1e-7)
    segments = division.segments(calls=1)
    assert sum(segments.parts.values()) == pytest.approx(segments.call_seconds)
