"""Checking folders of profiles: of training, of inference, complete, incomplete and broken."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.check import check_profiles, write_report
from compilewatch.extras.profiles.train.records import FindingCode
from compilewatch.profiling import Profiler


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"\0" * 13) + chunk(b"IEND", b"")


@pytest.fixture
def inference(tmp_path: Path) -> Path:
    for name, text in {
        "baseline_metrics.json": '{"schema_version": 1}',
        "detailed_metrics.csv": "batch_size,latency\n1,0.5\n4,0.7\n",
        "baseline_summary_report.txt": "Summary\n",
        "profiler_traces/stacks.txt": "a;b 1\n",
        "profiler_traces/trace.json": '[{"ph": "X", "name": "a", "ts": 1, "dur": 1}]',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "plots").mkdir()
    for name in ("batch_size_comparison.png", "metrics_heatmap.png"):
        (tmp_path / "plots" / name).write_bytes(PNG)
    return tmp_path


def test_an_inference_profile_with_everything_is_fine(inference: Path) -> None:
    (found,) = check_profiles(inference)
    assert (found.kind, found.state, found.exit_status) == ("inference", "finished", 0)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("baseline_metrics.json", b'{"a": ', "damaged"),
        ("baseline_metrics.json", b"[1]", "not an object"),
        ("baseline_metrics.json", b'{"schema_version": 99}', "newer compilewatch"),
        ("detailed_metrics.csv", b"batch_size,latency\n1,0.5\n4", "detailed_metrics.csv:3"),
        ("detailed_metrics.csv", b"latency\n1\n", "no column batch_size"),
        ("op_stats.csv", b"name,calls\naten::mm\n", "op_stats.csv:2"),
        ("op_stats.csv", b"", "no column name"),
        ("baseline_summary_report.txt", b"\n", "is empty"),
        ("profiler_traces/stacks.txt", b"", "is empty"),
        ("profiler_traces/trace.json", b"[{", "damaged"),
        ("plots/metrics_heatmap.png", PNG[:-3], "not a complete PNG"),
        ("plots/metrics_heatmap.png", PNG.replace(b"\0" * 13, b"\1" * 13), "not a complete PNG"),
        ("plots/metrics_heatmap.png", PNG + b"x", "not a complete PNG"),
        ("plots/metrics_heatmap.png", b"", "not a complete PNG"),
    ],
)
def test_each_damaged_file_is_named(inference: Path, name: str, data: bytes, said: str) -> None:
    (inference / name).write_bytes(data)
    (found,) = check_profiles(inference)
    assert found.exit_status == 2
    assert found.broken is not None
    assert name in found.broken
    assert said in found.broken
    assert "\n" not in found.broken


def test_an_inference_profile_that_was_cut_short_is_incomplete(inference: Path) -> None:
    (inference / "baseline_summary_report.txt").unlink()
    (found,) = check_profiles(inference)
    assert (found.state, found.exit_status) == ("incomplete", 1)
    assert [each.code for each in found.findings] == [FindingCode.INCOMPLETE]


def test_an_inference_profile_without_its_line_was_interrupted(inference: Path) -> None:
    folder = inference / "profile-20261122-224405-effd"
    folder.mkdir()
    for path in list(inference.iterdir()):
        if path != folder:
            path.rename(folder / path.name)
    assert [each.state for each in check_profiles(inference)] == ["incomplete"]
    (folder / "profiles.jsonl").write_text("{}\n")
    assert [each.state for each in check_profiles(inference)] == ["finished"]


def test_missing_plots_are_a_finding(inference: Path) -> None:
    (inference / "plots" / "metrics_heatmap.png").unlink()
    (found,) = check_profiles(inference)
    assert [each.code for each in found.findings] == [FindingCode.FILE_MISSING]


def test_all_profiles_below_a_folder_are_checked(inference: Path) -> None:
    with Profiler(inference / "training") as profiler:
        profiler.step()
    found = check_profiles(inference)
    assert [each.kind for each in found] == ["inference", "training"]
    assert profiler.folder is not None
    (profiler.folder / "config.json").write_text("{")
    assert [each.exit_status for each in check_profiles(inference)] == [0, 2]


def test_a_folder_without_profiles_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no profile"):
        check_profiles(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        check_profiles(tmp_path / "nowhere")


def test_the_report_says_what_was_found_and_changes_no_state(tmp_path: Path) -> None:
    with Profiler(tmp_path, trace_steps=0) as profiler:
        for _ in range(4):
            profiler.step()
    (found,) = check_profiles(tmp_path)
    text = write_report(found).read_text()
    assert "`few_steps`: only 2 steady steps" in text
    assert "| other |" in text
    assert check_profiles(tmp_path)[0].state == "finished"
