"""Break accounting on reports alone: what adds up to what."""

from pathlib import Path
from traceback import FrameSummary
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.records import StackFrame
from compilewatch.worker.targets.dynamo import capture, graph_breaks
from compilewatch.worker.targets.dynamo.graph_breaks import (
    BreakReport,
    fingerprint,
    stack_frame,
    user_stack,
)

BRANCH = "Data-dependent branching\n  Explanation: It branches.\n  Hint: Do not.\n\n  Developer"
LOOP = "graph break in loop\n  Explanation: A loop.\n  Hint: No.\n\n  Developer"
ODD, EVEN = (f"{name}\n  Explanation: New.\n  Hint: No.\n\n  Dev" for name in ("Odd", "Even"))


def frame(file: str, line: int = 1, function: str = "f") -> StackFrame:
    return StackFrame(file=file, line=line, function=function)


Report = tuple[str, BreakReport]


def _report(compile_id: str, reason: str = BRANCH, line: int = 3) -> Report:
    stack = (frame("m/model.py", line, "forward"),)
    return compile_id, BreakReport(reason=reason, stack=stack)


def _log(*reports: Report, **counts: Any) -> capture.Capture:
    log = capture.Capture(**counts)
    for report in reports:
        log.add(*report)
    return log


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        # A second report of one compile is a consequence.
        ([("0/0",), ("0/0", LOOP)], [("GB0170", 3, 1)]),
        ([("0/0",), ("1/0",), ("1/1",)], [("GB0170", 3, 3)]),
        ([("0/0", BRANCH, 3), ("1/0", BRANCH, 9)], [("GB0170", 3, 1), ("GB0170", 9, 1)]),
        # No registry knows these: the type is all that tells them apart.
        ([("0/0", ODD), ("1/0", EVEN)], [("unregistered", 3, 1), ("unregistered", 3, 1)]),
    ],
)
def test_one_cause_at_one_place_is_one_entry_with_its_occurrences(
    reports: list[tuple[Any, ...]], expected: list[Any]
) -> None:
    breaks = _log(*(_report(*each) for each in reports)).breaks()
    assert [(each.code, each.line, each.occurrences) for each in breaks] == expected
    kinds = {(each.gb_id, each.gb_type) for each in breaks}
    assert len({each.fingerprint for each in breaks}) == len(kinds)
    assert ("Then, in the same frame: graph break in loop" in breaks[0].reason) is (
        LOOP in reports[-1]
    )


def test_a_fingerprint_survives_line_drift_and_nothing_else() -> None:
    at = fingerprint("GB0170", frame("a.py"))
    assert at == fingerprint("GB0170", frame("a.py", 99))
    assert len({at, fingerprint("GB0001", frame("a.py")), fingerprint("GB0170", frame("b.py")),
                fingerprint("GB0170", frame("a.py", 1, "g"))}) == 4  # fmt: skip
    assert len(at) == 12


@pytest.mark.parametrize(
    ("log", "missing"),
    [
        (_log(_report("0/0"), cuts_counted=1), 0),
        (_log(_report("0/0"), cuts_counted=3), 2),
        (_log(_report("0/0"), frames_given_up=2, give_ups_reported=1), 1),
        (_log(_report("0/0"), broken_graphs={"0/0", "1/0"}), 1),
        (_log(frames_given_up=1), 1),
        (_log(frames_given_up=1, broken_graphs={"0/0"}), 2),
    ],
)
def test_the_sum_is_what_the_counts_prove(log: capture.Capture, missing: int) -> None:
    assert log.missing() == missing
    unattributed = [each for each in log.breaks() if each.code == "unattributed"]
    assert sum(each.occurrences for each in unattributed) == missing


IDS = st.sampled_from(["0/0", "0/1", "1/0", "2/0"])
REPORTS = st.lists(
    st.builds(_report, IDS, st.sampled_from([BRANCH, LOOP]), st.sampled_from([3, 9])), max_size=6
)
COUNTS = st.fixed_dictionaries(
    {
        **dict.fromkeys(
            ("frames_given_up", "give_ups_reported", "cuts_counted"), st.integers(0, 6)
        ),
        "broken_graphs": st.sets(IDS),
    }
)


@given(REPORTS, COUNTS)
def test_any_log_adds_up(reports: list[Report], counts: dict[str, Any]) -> None:
    log = _log(*reports, **counts)
    breaks = log.breaks()
    total = sum(each.occurrences for each in breaks)
    assert total == len(log.reports) + log.missing()
    restarted = sum(len(each) - 1 for each in log.reports.values())
    assert total >= log.cuts_counted - restarted
    assert total >= len(log.broken_graphs | log.reports.keys())
    assert total >= len(log.reports) + log.frames_given_up - log.give_ups_reported
    assert len({(each.fingerprint, each.line) for each in breaks}) == len(breaks)
    assert sum(each.occurrences for each in graph_breaks.merge((*breaks, *breaks))) == 2 * total


def test_each_graph_names_the_break_that_ended_it() -> None:
    log = _log(_report("0/0"), _report("1/0", line=7), _report("3/0"))
    assert log.ends(["0/0", "1/0", "2/0", "3/0"], log.breaks(), None) == (0, 1, -1, 0)


def test_a_reason_is_taken_in_full_names_exceptions_and_leaves_out_the_stack_of_torch() -> None:
    payload = (
        "Graph break in user code at /x/m.py:3\nGraph Break Reason: It\n\nbreaks\n\n"
        "Stack variable source attribution:\n  Tensor originated from\n\n"
        "User code traceback:\n  File ...\n\nTraceback (most recent call last)\n"
    )
    assert graph_breaks.reason_in(payload) == "It\n\nbreaks"
    head, raised = "WON'T CONVERT forward m/model.py line 2\n", "DynamicOutputShapeException: x\n\n"
    assert graph_breaks.reason_in(head + "another form") == head + "another form"
    code = (
        "========== The above exception occurred while processing the following code ==========\n\n"
        '  File "m/model.py", line 3, in forward\n    return x[mask]\n'
    )
    trace = (
        "========== TorchDynamo Stack Trace ==========\nTraceback (most recent call last):\n"
        '  File "torch/_ops.py", line 875, in __call__\n    return self._op(*args)\n'
        "  [Previous line repeated 3 more times]\n"
    )
    (found,) = _log(_report("0/0", head + trace + raised + code)).breaks()
    assert (found.code, found.reason) == ("dynamic_output_shape", head + raised + code)


def test_a_stack_leaves_out_the_harness_and_keeps_a_forward_in_a_forward() -> None:
    stack = [
        FrameSummary("/x/cli.py", 1, "main", line="go()"),
        FrameSummary(capture.__file__, 2, "capture", line=""),
        FrameSummary("/x/m/model.py", 10, "forward", line="return self.layer(x)"),
        FrameSummary(torch.nn.modules.module.__file__, 1778, "_wrapped_call_impl", line=""),
        FrameSummary("/x/m/model.py", 20, "forward", line="self.other(x)"),
        FrameSummary("/x/m/model.py", 22, "torch_dynamo_resume_in_forward_at_20", line="y.item()"),
    ]
    found = user_stack(stack)
    assert [(each.function, each.line) for each in found] == [("forward", 10), ("forward", 22)]
    assert found[-1].text == "y.item()"
    assert all(not each.file.startswith("/") for each in found)


def test_what_an_import_runs_is_one_break_of_the_statement_that_imports() -> None:
    def report(number: int, reason: str, file: str) -> Report:
        frames = [
            FrameSummary("/x/compilewatch/worker/phases.py", 1, "_eager", line="module(x)"),
            FrameSummary("/x/m/model.py", 7, "forward", line="import heavy"),
            FrameSummary("<frozen importlib._bootstrap>", 241, "_call", line=""),
            FrameSummary(file, number, "made", line="made()"),
        ]
        return f"{number}/0", BreakReport(reason=reason, stack=user_stack(frames))

    (found,) = _log(
        report(1, BRANCH, "/usr/lib/python3.11/dataclasses.py"),
        report(2, LOOP, "/x/site-packages/heavy/core.py"),
    ).breaks()
    assert (found.file, found.line, found.occurrences) == ("m/model.py", 7, 2)


def test_the_place_is_where_somebody_can_act() -> None:
    model, in_torch = frame("transformers/models/x.py"), frame("torch/nn/functional.py")
    polyfill, library = frame("torch/_dynamo/polyfills/copy.py"), frame("copy.py")
    frozen = frame("<frozen _collections_abc>")
    assert graph_breaks.place_of((model, library, polyfill)) == model
    assert graph_breaks.place_of((model, in_torch)) == in_torch
    assert graph_breaks.place_of((frozen,)) == frozen
    assert graph_breaks.place_of(()).file == "?"


def test_a_break_keeps_the_lines_around_it_wherever_its_file_lies(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("one\n\ttwo\n" + "three" * 99 + "\nfour\nfive\nsix")

    def lines(file: str, line: int) -> tuple[int, tuple[str, ...]]:
        place = stack_frame(file, line, "f")
        entry = graph_breaks.graph_break("x", "reason", place)
        return entry.source_start, entry.source

    own = str(tmp_path / "own.py")
    assert lines(own, 4) == (2, ("    two", ("three" * 99)[:200], "four", "five", "six"))
    assert lines(own, 1) == (1, ("one", "    two", ("three" * 99)[:200]))
    assert lines(own, 7) == lines(own, 0) == (0, ())
    assert lines("<eval_with_key>.17", 1)[1] == ()


def test_paths_are_relative_to_their_package_and_no_address_is_named() -> None:
    functional, portable = torch.nn.functional.__file__, graph_breaks.portable_text
    assert stack_frame(functional, 1, "f").file == "torch/nn/functional.py"
    assert stack_frame("<eval_with_key>.17", 1, "forward").file == "<eval_with_key>"
    assert portable(f"f ({functional} line 3)") == "f (torch/nn/functional.py line 3)"
    assert portable(f"{stack_frame!r}; x is 0x10") == "<function stack_frame>; x is 0x10"
