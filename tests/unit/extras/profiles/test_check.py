"""Reading and checking profiles: what is cut off is incomplete, what is changed is damage."""

import io
import re
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from compilewatch.errors import StoreError
from compilewatch.extras.profiles import check
from compilewatch.extras.profiles.check import check_profiles, read_training
from compilewatch.extras.profiles.records import OperatorStat
from compilewatch.profiling import Profiler

METRICS, STAGES = "metrics.json", "stage_times.json"
SUMMARY, CONFIG, STEPS = "profiler_summary.json", "config.json", "steps.jsonl"
COLUMNS = ",".join(OperatorStat.__struct_fields__)


def picture() -> bytes:
    out = io.BytesIO()
    Image.new("L", (2, 2)).save(out, "PNG")
    return out.getvalue()


PNG = picture()


@pytest.fixture
def inference(tmp_path: Path) -> Path:
    folder = tmp_path / "profile-20261122-224405-effd"
    for name, data in {
        check.BASELINE_FILE: b'{"schema_version": 1}',
        check.TABLE_FILE: b"batch_size,latency\n1,0.5\n4,0.7\n",
        check.TEXT_FILE: b"Summary\n",
        check.STACKS: b"a;b 1\n",
        check.TRACE: b'[{"ph": "X", "name": "a", "ts": 1, "dur": 1}]',
        **dict.fromkeys(check.PLOTS, PNG),
        "profiles.jsonl": b"{}\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(data)
    return folder


DAMAGED_TRACE = b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "du'


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("baseline_metrics.json", b'{"a": ', "damaged"),
        ("baseline_metrics.json", b'{"schema_version": 99}', "newer compilewatch"),
        ("detailed_metrics.csv", b"batch_size,latency\n1,0.5\n4", ":3: 1 columns instead of 2"),
        ("detailed_metrics.csv", b"latency\n1\n", "no column batch_size"),
        ("baseline_summary_report.txt", b"\n", "is empty"),
        ("profiler_traces/stacks.txt", b"", "is empty"),
        ("plots/metrics_heatmap.png", PNG[:-9], "not a complete PNG"),
        ("plots/metrics_heatmap.png", PNG.replace(b"IDATx", b"IDATy"), "not a complete PNG"),
        ("plots/metrics_heatmap.png", b"x", "not a complete PNG"),
        # Of a training:
        ("trace.json", DAMAGED_TRACE, "damaged"),
        ("trace.json", b'{"traceEvents": []}', "without events"),
        ("trace.json", b"[]", "without events"),
        ("op_stats.csv", f"{COLUMNS}\naten::mm,3\n".encode(), "2 columns instead of 8"),
        ("op_stats.csv", f"{COLUMNS}\naten::mm,three,1,1,0,0,0,0\n".encode(), "damaged"),
        ("op_stats.csv", f'{COLUMNS}\naten::mm,"3\n'.encode(), "damaged"),
    ],
)
def test_each_damaged_file_is_named(
    inference: Path, folder: Path, name: str, data: bytes, said: str
) -> None:
    place = killed(folder) if name in ("trace.json", "op_stats.csv") else inference
    (place / name).write_bytes(data)
    (found,) = check_profiles(place)
    assert found.exit_status == 2
    assert re.search(f"{name}.*{said}", found.broken or "")
    assert "\n" not in str(found.broken)


def test_a_missing_file_of_inference_is_a_finding(inference: Path) -> None:
    for name, state, code in (
        ("plots/metrics_heatmap.png", "finished", "file_missing"),
        ("profiles.jsonl", "incomplete", "incomplete"),  # it was interrupted
    ):
        (inference / name).unlink()
        (found,) = check_profiles(inference)
        assert (found.state, found.exit_status) == (state, 1)
        assert [finding.code for finding in found.findings] == [code]


def test_all_profiles_below_a_folder_are_checked(
    inference: Path, folder: Path, tmp_path: Path
) -> None:
    profiles = check_profiles(tmp_path)
    assert [(p.kind, p.state) for p in profiles] == [
        ("training", "finished"),
        ("inference", "finished"),
    ]
    (folder / CONFIG).write_text("{")
    assert [profile.exit_status for profile in check_profiles(tmp_path)] == [2, 0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Profiler(tmp_path, trace_steps=0) as profiler:
        for _ in range(5):
            profiler.step(loss=0.5, samples=2)
    assert profiler.folder is not None
    return profiler.folder


def killed(folder: Path) -> Path:
    """Turn it into what is left of a process that was killed before the end."""
    for name in (SUMMARY, METRICS, STAGES):
        (folder / name).unlink()
    return folder


def test_a_killed_profile_is_incomplete_wherever_its_last_line_was_cut(folder: Path) -> None:
    data = (killed(folder) / STEPS).read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(0, len(data) + 1, 7):
        (folder / STEPS).write_bytes(data[:cut])
        found = read_training(folder)
        assert found.state == "incomplete"
        assert len(found.steps) == sum(end <= cut for end in ends)
        assert found.torn == (cut not in (0, *ends))


@pytest.mark.parametrize("name", [CONFIG, METRICS, STAGES, SUMMARY, STEPS])
def test_every_file_that_is_cut_off_or_missing_is_found(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(StoreError, match=name):
        read_training(folder)
    if name != SUMMARY:  # without it, the profile is incomplete
        (folder / name).unlink()
        with pytest.raises(StoreError, match=f"{name} is missing"):
            read_training(folder)


def test_a_damaged_line_is_broken(folder: Path) -> None:
    lines = (killed(folder) / STEPS).read_bytes().splitlines(keepends=True)
    (folder / STEPS).write_bytes(b"".join([*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]))
    with pytest.raises(StoreError, match=f"{STEPS}:3: damaged"):
        read_training(folder)


@pytest.mark.parametrize("name", [CONFIG, SUMMARY, STEPS])
def test_a_newer_schema_is_one_line(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes().replace(b'"schema_version":1', b'"schema_version":9')
    (folder / name).write_bytes(data.replace(b'"schema_version": 1', b'"schema_version": 9'))
    with pytest.raises(StoreError, match="newer compilewatch") as caught:
        read_training(folder)
    assert "\n" not in str(caught.value)


def test_profiles_are_found_below_a_folder_newest_first(folder: Path) -> None:
    with Profiler(folder.parent / "BertModel" / "eager") as profiler:
        profiler.step()
    assert check.find_training(folder.parent) == (profiler.folder, folder)
    assert check.find_training(folder.parent / "none") == ()


def test_the_tail_of_a_long_profile_begins_with_a_complete_line(folder: Path) -> None:
    path = folder / STEPS
    step = msgspec.json.decode(path.read_bytes().splitlines()[0])
    lines = [msgspec.json.encode(step | {"index": index}) + b"\n" for index in range(5000)]
    path.write_bytes(b"".join(lines) + b'{"index": 50')
    found = check.tail(folder)
    assert found[-1].index == 4999
    assert 500 < len(found) < 5000
