"""Reading training profiles: what is cut off is incomplete, what is changed is damage."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.extras.profiles.train.records import (
    CONFIG_FILE,
    METRICS_FILE,
    OPERATOR_COLUMNS,
    OPERATORS_FILE,
    STAGES_FILE,
    STEPS_FILE,
    SUMMARY_FILE,
    TRACE_FILE,
)
from compilewatch.extras.profiles.train.store import (
    DamagedProfileError,
    find_training,
    read_training,
    state_of,
    tail,
)
from compilewatch.profiling import Profiler


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


def test_a_finished_profile_without_its_end_is_broken(folder: Path) -> None:
    data = (folder / STEPS_FILE).read_bytes()
    for cut in range(0, len(data), 11):
        (folder / STEPS_FILE).write_bytes(data[:cut])
        with pytest.raises(DamagedProfileError, match=STEPS_FILE):
            read_training(folder)


@pytest.mark.parametrize("name", [CONFIG_FILE, METRICS_FILE, STAGES_FILE, SUMMARY_FILE, STEPS_FILE])
def test_every_file_that_is_cut_off_is_found(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedProfileError, match=name):
        read_training(folder)


def test_a_changed_figure_is_found(folder: Path) -> None:
    path = folder / METRICS_FILE
    path.write_bytes(path.read_bytes().replace(b'"steps": 5', b'"steps": 6'))
    with pytest.raises(DamagedProfileError, match="changed since the profile ended"):
        read_training(folder)


def test_a_missing_file_is_found(folder: Path) -> None:
    (folder / METRICS_FILE).unlink()
    with pytest.raises(DamagedProfileError, match=f"{METRICS_FILE} is missing"):
        read_training(folder)


def test_a_line_in_the_middle_that_is_damaged_is_broken(folder: Path) -> None:
    lines = (killed(folder) / STEPS_FILE).read_bytes().splitlines(keepends=True)
    (folder / STEPS_FILE).write_bytes(b"".join([*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]))
    with pytest.raises(DamagedProfileError, match=f"{STEPS_FILE}:3: damaged"):
        read_training(folder)


def test_steps_out_of_order_are_broken(folder: Path) -> None:
    lines = (killed(folder) / STEPS_FILE).read_bytes().splitlines(keepends=True)
    (folder / STEPS_FILE).write_bytes(b"".join([*lines, lines[1]]))
    with pytest.raises(DamagedProfileError, match="step 1 after step 4"):
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
    ("text", "said"),
    [
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "du', "damaged"),
        ('{"traceEvents": []}', "without events"),
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": -1}]}', "without name"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}', "without name"),
        ("7", "without events"),
    ],
)
def test_a_trace_that_no_viewer_opens_is_broken(folder: Path, text: str, said: str) -> None:
    (killed(folder) / TRACE_FILE).write_text(text)
    with pytest.raises(DamagedProfileError, match=f"{TRACE_FILE}.*{said}"):
        read_training(folder)


@pytest.mark.parametrize("row", ["aten::mm,3", "aten::mm,three,1,1,0,0,0,0", 'aten::mm,"3'])
def test_a_damaged_table_of_operators_is_broken(folder: Path, row: str) -> None:
    text = f"{','.join(OPERATOR_COLUMNS)}\n{row}\n"
    (killed(folder) / OPERATORS_FILE).write_text(text)
    with pytest.raises(DamagedProfileError, match=OPERATORS_FILE):
        read_training(folder)


def test_the_operators_are_read_exactly(folder: Path) -> None:
    row = '"aten::mm, with a comma",3,1.25,2.5,0,0,-8,16'
    (killed(folder) / OPERATORS_FILE).write_text(f"{','.join(OPERATOR_COLUMNS)}\n{row}\n")
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


def test_the_state_of_a_killed_profile(folder: Path) -> None:
    assert state_of(folder) == "finished"
    assert state_of(killed(folder)) == "incomplete"
