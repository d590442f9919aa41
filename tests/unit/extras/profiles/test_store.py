"""Stored profiles, written last and read whole or not at all; what of a run is profiled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError, UsageError
from compilewatch.extras.profiles.measurement import Job, busy_note, suggested_settings
from compilewatch.extras.profiles.of_run import (
    compared_with,
    slower_notes,
    to_profile,
)
from compilewatch.extras.profiles.records import InferenceOptions, InferenceProfile
from compilewatch.extras.profiles.store import (
    PROFILES_FILE,
    SAMPLES_FILE,
    ProfileFolder,
    adopt_profiles,
    open_profile,
    profile_folders,
    read_profiles,
)
from compilewatch.records import Mode, Status, Target, Tier
from compilewatch.store.journal import append_record
from tests import factories, profiled

FIRST = "profile-20261122-100000-0001"
SECOND = "profile-20261122-110000-0002"


def stored(root: Path, name: str) -> InferenceProfile:
    found, samples = profiled.profile(name=name)
    folder = ProfileFolder(root / name)
    folder.write({SAMPLES_FILE: msgspec.json.encode(samples), "plots/a.png": b"x"})
    found = msgspec.structs.replace(found, files=folder.names())
    folder.finish(found)
    folder.close()
    return found


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = stored(tmp_path, FIRST)
    found = open_profile(tmp_path, "latest")
    assert found.profile == made
    assert found.samples() == profiled.profile()[1]
    assert made.files == ("plots/a.png", SAMPLES_FILE)
    assert not list((tmp_path / FIRST).glob(".scratch*"))


def test_profiles_are_found_by_id_beginning_path_and_latest(tmp_path: Path) -> None:
    stored(tmp_path, FIRST)
    stored(tmp_path, SECOND)
    assert [path.name for path in profile_folders(tmp_path)] == [SECOND, FIRST]
    assert (tmp_path / "latest-profile").resolve().name == SECOND
    for reference in (FIRST, "20261122-10", str(tmp_path / FIRST)):
        assert open_profile(tmp_path, reference).profile.id == FIRST
    assert open_profile(tmp_path, "latest").profile.id == SECOND
    with pytest.raises(UsageError, match="several profiles begin with"):
        open_profile(tmp_path, "2026")
    with pytest.raises(UsageError, match="did you mean"):
        open_profile(tmp_path, "profile-20261122-100000-0009")
    with pytest.raises(UsageError, match="has no profile of Other"):
        open_profile(tmp_path, FIRST, "Other")


def test_a_folder_without_a_record_is_an_interrupted_profile(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / FIRST)
    folder.write({"baseline_metrics.json": b"{}"})
    folder.close()
    with pytest.raises(UsageError, match="was interrupted"):
        open_profile(tmp_path, FIRST)
    assert list(profile_folders(tmp_path)) == []


def test_an_unused_folder_disappears(tmp_path: Path) -> None:
    ProfileFolder(tmp_path / FIRST).close()
    assert not (tmp_path / FIRST).exists()


def test_a_torn_line_is_left_out_and_the_next_is_kept(tmp_path: Path) -> None:
    made = stored(tmp_path, FIRST)
    path = tmp_path / FIRST / PROFILES_FILE
    path.write_bytes(path.read_bytes() + b'{"kind": "infer')
    found, damaged = read_profiles(tmp_path / FIRST)
    assert [each.profile for each in found] == [made]
    assert "incomplete last line" in damaged[0]
    append_record(path, made)
    found, damaged = read_profiles(tmp_path / FIRST)
    assert len(found) == 2
    assert "damaged line left out" in damaged[0]


def test_a_profile_of_a_newer_program_is_rejected(tmp_path: Path) -> None:
    made = stored(tmp_path, FIRST)
    newer = msgspec.structs.replace(made, schema_version=made.schema_version + 1)
    append_record(tmp_path / FIRST / PROFILES_FILE, newer)
    with pytest.raises(StoreError, match="written by a newer compilewatch"):
        open_profile(tmp_path, FIRST)


def test_there_is_a_word_for_no_profiles(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compilewatch profile infer"):
        open_profile(tmp_path, "latest")


def test_lost_and_damaged_values(tmp_path: Path) -> None:
    stored(tmp_path, FIRST)
    found = open_profile(tmp_path, FIRST)
    (found.folder / SAMPLES_FILE).write_bytes(b"[")
    with pytest.raises(StoreError, match="is damaged"):
        found.samples()
    (found.folder / SAMPLES_FILE).unlink()
    assert found.samples() == ()


OPTIONS = InferenceOptions()


def test_the_most_used_models_that_compiled_are_profiled_once() -> None:
    results = [
        factories.result("Rare", downloads=1),
        factories.result("Common", downloads=100),
        factories.result("Common", downloads=100, target=Target(name="inductor")),
        factories.result("Broken", downloads=1000, status=Status.ERROR),
        factories.result("Trained", downloads=1000, target=Target(mode=Mode.TRAIN)),
        factories.result("Cut", downloads=50, status=Status.GRAPH_BREAK),
    ]
    found = to_profile(results, 2)
    assert [request.model.name for request in found] == ["Common", "Cut"]
    assert {request.tier for request in found} == {Tier.REAL}


def test_the_machine_and_the_options_are_in_the_key_and_the_software_is_not() -> None:
    request = factories.result("A").request
    job = Job(request=request, options=OPTIONS)
    key = job.key(profiled.MACHINE)
    newer = msgspec.structs.replace(request, key="of another torch")
    assert Job(request=newer, options=OPTIONS).key(profiled.MACHINE) == key
    other = msgspec.structs.replace(profiled.MACHINE, cpu="Another CPU")
    assert job.key(other) != key
    threads = msgspec.structs.replace(OPTIONS, threads=2)
    assert Job(request=request, options=threads).key(profiled.MACHINE) != key
    model = factories.result("B").request
    assert Job(request=model, options=OPTIONS).key(profiled.MACHINE) != key


def test_settings_are_those_that_torch_suggests() -> None:
    text = "set torch._dynamo.config.capture_dynamic_output_shape_ops = True"
    other = msgspec.structs.replace(profiled.COST, reason=text)
    assert suggested_settings([profiled.COST, other, profiled.COST]) == [
        "capture_scalar_outputs",
        "capture_dynamic_output_shape_ops",
    ]
    assert suggested_settings([msgspec.structs.replace(profiled.COST, reason="none")]) == []


def test_only_a_busy_machine_gets_a_note() -> None:
    assert busy_note(profiled.MACHINE, 0.4) is None
    assert busy_note(profiled.MACHINE, None) is None
    assert "load of 5.0 on 2 cores" in str(busy_note(profiled.MACHINE, 5.0))


def stored_in_run(root: Path, factor: float = 1.0, seed: int = 0) -> None:
    made, samples = profiled.profile(factor, seed=seed)
    folder = ProfileFolder(root, "profiles/net")
    folder.write({"raw_values.json": msgspec.json.encode(samples), "report.html": b"page"})
    folder.finish(msgspec.structs.replace(made, place="profiles/net"))
    folder.close()


def test_a_merged_run_has_the_profiles_of_its_parts_once(tmp_path: Path) -> None:
    stored_in_run(tmp_path / "part")
    merged = tmp_path / "merged"
    merged.mkdir()
    adopt_profiles(tmp_path / "part", merged)
    adopt_profiles(tmp_path / "part", merged)
    (found,), damaged = read_profiles(merged)
    assert damaged == ()
    assert (found.folder / "report.html").read_bytes() == b"page"
    assert len(found.samples()) == 6


def test_a_run_says_which_models_are_slower(tmp_path: Path) -> None:
    from compilewatch.store import StoredRun

    stored_in_run(tmp_path / "old")
    stored_in_run(tmp_path / "new", 1.3, seed=1)
    old, new = StoredRun(tmp_path / "old"), StoredRun(tmp_path / "new")
    (note,) = slower_notes(compared_with(new, old))
    assert "is slower than in the baseline: inductor at batch 1 +" in note
    assert slower_notes(compared_with(old, old)) == []
    assert compared_with(new, None) == ()
