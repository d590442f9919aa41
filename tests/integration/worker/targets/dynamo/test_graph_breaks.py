"""Break accounting on reports alone: what adds up to what."""

from __future__ import annotations

from pathlib import Path
from traceback import FrameSummary
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.records import StackFrame
from compilewatch.worker.targets.dynamo.graph_breaks import (
    BreakCause,
    BreakLog,
    BreakReport,
    fingerprint,
    graph_break,
    merge,
    place_of,
    portable_text,
    reason_in,
    stack_frame,
    user_stack,
)

BRANCH = "Data-dependent branching\n  Explanation: It branches.\n  Hint: Do not.\n\n  Developer"
LOOP = "graph break in loop\n  Explanation: A loop.\n  Hint: No.\n\n  Developer"


def _report(compile_id: str, reason: str = BRANCH, line: int = 3) -> BreakReport:
    frame = StackFrame(file="m/model.py", line=line, function="forward")
    return BreakReport(compile_id=compile_id, reason=reason, stack=(frame,))


def _log(*reports: BreakReport, **counts: Any) -> BreakLog:
    log = BreakLog(**counts)
    for report in reports:
        log.add(report)
    return log


def test_a_second_report_of_one_compile_is_a_consequence() -> None:
    (found,) = _log(_report("0/0"), _report("0/0", LOOP)).breaks()
    assert (found.code, found.occurrences) == ("GB0170", 1)
    assert "Then, in the same frame: graph break in loop" in found.reason


def test_one_cause_at_one_place_is_one_entry_with_its_occurrences() -> None:
    (found,) = _log(_report("0/0"), _report("1/0"), _report("1/1")).breaks()
    assert found.occurrences == 3


def test_two_lines_of_a_function_share_a_fingerprint_but_not_an_entry() -> None:
    first, second = _log(_report("0/0", line=3), _report("1/0", line=9)).breaks()
    assert first.fingerprint == second.fingerprint
    assert (first.line, second.line) == (3, 9)


def test_two_causes_that_no_registry_knows_are_two_breaks_of_one_place() -> None:
    """As on a torch that is newer than its registry: the type is all that tells them apart."""
    one, two = (f"{name}\n  Explanation: New.\n  Hint: No.\n\n  Dev" for name in ("Odd", "Even"))
    first, second = _log(_report("0/0", one), _report("1/0", two)).breaks()
    assert (first.gb_id, second.gb_id) == (None, None)
    assert first.code == second.code
    assert (first.gb_type, second.gb_type) == ("Odd", "Even")
    assert first.fingerprint != second.fingerprint


def test_a_fingerprint_survives_line_drift_and_nothing_else() -> None:
    at = StackFrame(file="a.py", line=1, function="f")
    moved = StackFrame(file="a.py", line=99, function="f")
    renamed = StackFrame(file="a.py", line=1, function="g")
    assert fingerprint("GB0170", at) == fingerprint("GB0170", moved)
    others = (fingerprint("GB0001", at), fingerprint("GB0170", renamed))
    assert len({fingerprint("GB0170", at), *others}) == 3
    assert len(fingerprint("GB0170", at)) == 12


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
def test_the_sum_is_what_the_counts_prove(log: BreakLog, missing: int) -> None:
    assert log.missing() == missing
    unattributed = [each for each in log.breaks() if each.code == "unattributed"]
    assert sum(each.occurrences for each in unattributed) == missing
    assert sum(each.occurrences for each in log.breaks()) == len(log.reports) + missing


IDS = st.sampled_from(["0/0", "0/1", "1/0", "2/0"])
REPORTS = st.lists(
    st.builds(_report, IDS, st.sampled_from([BRANCH, LOOP]), st.sampled_from([3, 9])), max_size=6
)
COUNTS = st.fixed_dictionaries(
    {
        "frames_given_up": st.integers(0, 6),
        "give_ups_reported": st.integers(0, 6),
        "cuts_counted": st.integers(0, 6),
        "broken_graphs": st.sets(IDS),
    }
)


@given(REPORTS, COUNTS)
def test_any_log_adds_up(reports: list[BreakReport], counts: dict[str, Any]) -> None:
    log = _log(*reports, **counts)
    found = log.breaks()
    total = sum(each.occurrences for each in found)
    assert total == len(log.reports) + log.missing()
    restarted = sum(len(each) - 1 for each in log.reports.values())
    assert total >= log.cuts_counted - restarted
    assert total >= len(log.broken_graphs | log.reports.keys())
    assert total >= len(log.reports) + log.frames_given_up - log.give_ups_reported
    assert len({(each.fingerprint, each.line) for each in found}) == len(found)
    assert sum(each.occurrences for each in merge((*found, *found))) == 2 * total


def test_the_reason_is_taken_in_full_and_without_the_stack() -> None:
    payload = (
        "Graph break in user code at /x/m.py:3\nGraph Break Reason: It\n\nbreaks\n\n"
        "Stack variable source attribution:\n  Tensor originated from\n\n"
        "User code traceback:\n  File ...\n\nTraceback (most recent call last)\n"
    )
    assert reason_in(payload) == "It\n\nbreaks"
    assert reason_in("WON'T CONVERT f\nsome other form") == "WON'T CONVERT f\nsome other form"


def test_a_reason_names_the_exceptions_and_leaves_out_the_stack_of_torch() -> None:
    reason = (
        "WON'T CONVERT forward m/model.py line 2\n"
        "========== TorchDynamo Stack Trace ==========\n"
        "Traceback (most recent call last):\n"
        '  File "torch/_ops.py", line 875, in __call__\n    return self._op(*args)\n'
        "  [Previous line repeated 3 more times]\n"
        "DynamicOutputShapeException: aten.nonzero.default\n\n"
        "========== The above exception occurred while processing the following code ==========\n\n"
        '  File "m/model.py", line 3, in forward\n    return x[mask]\n'
    )
    found = _log(_report("0/0", reason)).breaks()[0]
    assert found.code == "dynamic_output_shape"
    assert found.reason == (
        "WON'T CONVERT forward m/model.py line 2\n"
        "DynamicOutputShapeException: aten.nonzero.default\n\n"
        "========== The above exception occurred while processing the following code ==========\n\n"
        '  File "m/model.py", line 3, in forward\n    return x[mask]\n'
    )


def test_a_stack_leaves_out_the_harness_and_keeps_a_forward_in_a_forward() -> None:
    import torch

    from compilewatch.worker.targets.dynamo import capture

    module = torch.nn.modules.module.__file__
    stack = [
        FrameSummary("/x/cli.py", 1, "main", line="go()"),
        FrameSummary(capture.__file__, 2, "capture", line=""),
        FrameSummary("/x/m/model.py", 10, "forward", line="return self.layer(x)"),
        FrameSummary(module, 1778, "_wrapped_call_impl", line=""),
        FrameSummary("/x/m/model.py", 20, "forward", line="self.other(x)"),
        FrameSummary("/x/m/model.py", 22, "torch_dynamo_resume_in_forward_at_20", line="y.item()"),
    ]
    found = user_stack(stack)
    assert [(frame.function, frame.line) for frame in found] == [("forward", 10), ("forward", 22)]
    assert found[-1].text == "y.item()"
    assert all(not frame.file.startswith("/") for frame in found)


def test_what_an_import_runs_is_one_break_of_the_statement_that_imports() -> None:
    def report(number: int, reason: str, *files: str) -> BreakReport:
        frames = [
            FrameSummary("/x/compilewatch/worker/phases.py", 1, "_eager", line="module(x)"),
            FrameSummary("/x/m/model.py", 7, "forward", line="import heavy"),
            FrameSummary("<frozen importlib._bootstrap>", 241, "_call", line=""),
            *(FrameSummary(file, number, "made", line="made()") for file in files),
        ]
        return BreakReport(compile_id=f"{number}/0", reason=reason, stack=user_stack(frames))

    (found,) = _log(
        report(1, BRANCH, "/usr/lib/python3.11/dataclasses.py"),
        report(2, LOOP, "/x/site-packages/heavy/core.py"),
    ).breaks()
    assert (found.file, found.line, found.occurrences) == ("m/model.py", 7, 2)


def test_the_place_is_where_somebody_can_act() -> None:
    model = StackFrame(file="transformers/models/x.py", line=5, function="forward")
    in_torch = StackFrame(file="torch/nn/functional.py", line=7, function="one_hot")
    polyfill = StackFrame(file="torch/_dynamo/polyfills/copy.py", line=1, function="copy")
    library = StackFrame(file="copy.py", line=153, function="deepcopy")
    frozen = StackFrame(file="<frozen _collections_abc>", line=989, function="__iter__")
    assert place_of((model, library, polyfill)) == model
    assert place_of((model, in_torch)) == in_torch
    assert place_of((frozen,)) == frozen
    assert place_of(()).file == "?"


def test_a_break_keeps_the_lines_around_it_wherever_its_file_lies(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "\n".join(["one", "\ttwo", "three" * 99, "four", "five", "six"])
    )

    def lines(line: int) -> tuple[int, tuple[str, ...]]:
        place = stack_frame(str(tmp_path / "own.py"), line, "f")
        found = graph_break(BreakCause(code="x"), "reason", place)
        return found.source_start, found.source

    assert lines(4) == (2, ("    two", ("three" * 99)[:200], "four", "five", "six"))
    assert lines(1) == (1, ("one", "    two", ("three" * 99)[:200]))
    assert lines(7) == lines(0) == (0, ())
    generated = stack_frame("<eval_with_key>.17", 1, "forward")
    assert graph_break(BreakCause(code="x"), "reason", generated).source == ()


def test_each_graph_names_the_break_that_ended_it() -> None:
    log = _log(_report("0/0"), _report("1/0", line=7), _report("3/0"))
    breaks = log.breaks()
    assert [found.occurrences for found in breaks] == [2, 1]
    assert log.ends(["0/0", "1/0", "2/0", "3/0"], breaks, None) == (0, 1, -1, 0)


def test_paths_are_relative_to_their_package() -> None:
    import torch

    functional = torch.nn.functional.__file__
    assert stack_frame(functional, 1, "f").file == "torch/nn/functional.py"
    assert stack_frame("<eval_with_key>.17", 1, "forward").file == "<eval_with_key>"
    assert portable_text(f"frame skipped: f ({functional} line 3)") == (
        "frame skipped: f (torch/nn/functional.py line 3)"
    )


def test_a_reason_names_no_address() -> None:
    """Otherwise it would differ from run to run."""
    text = f"target: {stack_frame!r}; x is 0x10"
    assert " at 0x" in text
    assert portable_text(text) == "target: <function stack_frame>; x is 0x10"
