"""Reading and checking profiles: what is cut off is incomplete, what is changed is damage."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.extras.profiles.check import (
    DamagedProfileError,
    check_profiles,
    find_training,
    read_training,
    tail,
    write_report,
)
from compilewatch.extras.profiles.training import (
    CONFIG_FILE,
    OPERATORS_FILE,
    STEPS_FILE,
    SUMMARY_FILE,
    TRACE_FILE,
    OperatorStat,
)
from compilewatch.profiling import Profiler

METRICS_FILE, STAGES_FILE = "metrics.json", "stage_times.json"
OPERATOR_COLUMNS = ",".join(OperatorStat.__struct_fields__)


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


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("baseline_metrics.json", b'{"a": ', "damaged"),
        ("baseline_metrics.json", b"[1]", "damaged"),
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


@pytest.mark.parametrize(
    ("name", "state", "code"),
    [
        ("baseline_summary_report.txt", "incomplete", "incomplete"),
        ("plots/metrics_heatmap.png", "finished", "file_missing"),
    ],
)
def test_a_missing_file_of_inference_is_a_finding(
    inference: Path, name: str, state: str, code: str
) -> None:
    (inference / name).unlink()
    (found,) = check_profiles(inference)
    assert (found.state, found.exit_status) == (state, 1)
    assert [finding.code for finding in found.findings] == [code]


def test_an_inference_profile_without_its_line_was_interrupted(inference: Path) -> None:
    folder = inference / "profile-20261122-224405-effd"
    folder.mkdir()
    for path in list(inference.iterdir()):
        if path != folder:
            path.rename(folder / path.name)
    assert [profile.state for profile in check_profiles(inference)] == ["incomplete"]
    (folder / "profiles.jsonl").write_text("{}\n")
    assert [profile.state for profile in check_profiles(inference)] == ["finished"]


def test_all_profiles_below_a_folder_are_checked(inference: Path) -> None:
    with Profiler(inference / "training") as profiler:
        profiler.step()
    profiles = check_profiles(inference)
    assert [(p.kind, p.state) for p in profiles] == [
        ("inference", "finished"),
        ("training", "finished"),
    ]
    assert profiler.folder is not None
    (profiler.folder / "config.json").write_text("{")
    assert [profile.exit_status for profile in check_profiles(inference)] == [0, 2]


def test_the_report_says_what_was_found_and_changes_no_state(tmp_path: Path) -> None:
    with Profiler(tmp_path, trace_steps=0) as profiler:
        for _ in range(4):
            profiler.step()
    (found,) = check_profiles(tmp_path)
    text = write_report(found).read_text()
    assert "`few_steps`: only 2 steady steps" in text
    assert "| other |" in text
    assert check_profiles(tmp_path)[0].state == "finished"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Profiler(tmp_path) as profiler:
        for _ in range(5):
            profiler.step(loss=0.5, samples=2)
    assert profiler.folder is not None
    return profiler.folder


def killed(folder: Path) -> Path:
    """Turn it into what is left of a process that was killed before the end."""
    for name in (SUMMARY_FILE, METRICS_FILE, STAGES_FILE):
        (folder / name).unlink()
    return folder


def test_a_killed_profile_is_incomplete_wherever_its_last_line_was_cut(folder: Path) -> None:
    data = (killed(folder) / STEPS_FILE).read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(0, len(data) + 1, 7):
        (folder / STEPS_FILE).write_bytes(data[:cut])
        found = read_training(folder)
        assert found.state == "incomplete"
        assert len(found.steps) == sum(end <= cut for end in ends)
        assert found.torn == (cut not in (0, *ends))


@pytest.mark.parametrize("name", [CONFIG_FILE, METRICS_FILE, STAGES_FILE, SUMMARY_FILE, STEPS_FILE])
def test_every_file_that_is_cut_off_is_found(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedProfileError, match=name):
        read_training(folder)


def test_a_changed_figure_and_a_missing_file_are_found(folder: Path) -> None:
    path = folder / METRICS_FILE
    path.write_bytes(path.read_bytes().replace(b'"steps": 5', b'"steps": 6'))
    with pytest.raises(DamagedProfileError, match="changed since the profile ended"):
        read_training(folder)
    path.unlink()
    with pytest.raises(DamagedProfileError, match=f"{METRICS_FILE} is missing"):
        read_training(folder)


def test_a_damaged_line_and_steps_out_of_order_are_broken(folder: Path) -> None:
    lines = (killed(folder) / STEPS_FILE).read_bytes().splitlines(keepends=True)
    (folder / STEPS_FILE).write_bytes(b"".join([*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]))
    with pytest.raises(DamagedProfileError, match=f"{STEPS_FILE}:3: damaged"):
        read_training(folder)
    (folder / STEPS_FILE).write_bytes(b"".join([*lines, lines[1]]))
    with pytest.raises(DamagedProfileError, match="step 1 after step 4"):
        read_training(folder)
    longer = lines[0].replace(b'"wall_seconds":', b'"wall_seconds":9')
    (folder / STEPS_FILE).write_bytes(longer)
    with pytest.raises(DamagedProfileError, match="stages of"):
        read_training(folder)


@pytest.mark.parametrize("name", [CONFIG_FILE, SUMMARY_FILE, STEPS_FILE])
def test_a_newer_schema_is_one_line(folder: Path, name: str) -> None:
    path = folder / name
    data = path.read_bytes().replace(b'"schema_version":1', b'"schema_version":9')
    path.write_bytes(data.replace(b'"schema_version": 1', b'"schema_version": 9'))
    with pytest.raises(StoreError, match="newer compilewatch") as caught:
        read_training(folder)
    assert not isinstance(caught.value, DamagedProfileError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (TRACE_FILE, '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "du', "damaged"),
        (TRACE_FILE, '{"traceEvents": []}', "without events"),
        (TRACE_FILE, '[{"ph": "X", "name": "a", "ts": 1, "dur": -1}]', "without name"),
        (TRACE_FILE, '{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}', "without name"),
        (TRACE_FILE, "7", "without events"),
        (OPERATORS_FILE, f"{OPERATOR_COLUMNS}\naten::mm,3\n", "2 columns instead of 8"),
        (OPERATORS_FILE, f"{OPERATOR_COLUMNS}\naten::mm,three,1,1,0,0,0,0\n", "damaged"),
        (OPERATORS_FILE, f'{OPERATOR_COLUMNS}\naten::mm,"3\n', "damaged"),
    ],
)
def test_a_damaged_trace_or_table_is_broken(folder: Path, name: str, text: str, said: str) -> None:
    (killed(folder) / name).write_text(text)
    with pytest.raises(DamagedProfileError, match=f"{name}.*{said}"):
        read_training(folder)


def test_the_operators_are_read_exactly(folder: Path) -> None:
    row = '"aten::mm, with a comma",3,1.25,2.5,0,0,-8,16'
    (killed(folder) / OPERATORS_FILE).write_text(f"{OPERATOR_COLUMNS}\n{row}\n")
    (found,) = read_training(folder).operators or ()
    assert (found.name, found.calls, found.self_cpu_time_us) == ("aten::mm, with a comma", 3, 1.25)


def test_profiles_are_found_below_a_folder_newest_first(folder: Path) -> None:
    with Profiler(folder.parent / "BertModel" / "eager") as profiler:
        profiler.step()
    assert find_training(folder.parent) == (profiler.folder, folder)
    assert find_training(folder.parent / "none") == ()


def test_the_tail_of_a_long_profile_begins_with_a_complete_line(folder: Path) -> None:
    path = folder / STEPS_FILE
    step = msgspec.json.decode(path.read_bytes().splitlines()[0])
    lines = [msgspec.json.encode(step | {"index": index}) + b"\n" for index in range(5000)]
    path.write_bytes(b"".join(lines) + b'{"index": 50')
    found = tail(folder)
    assert found[-1].index == 4999
    assert 500 < len(found) < 5000
