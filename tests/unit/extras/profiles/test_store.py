"""Stored profiles, written last and read whole or not at all; what of a run is profiled."""

from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError, UsageError
from compilewatch.extras.profiles.of_run import compared_with, slower_notes, to_profile
from compilewatch.extras.profiles.records import InferenceProfile
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


def stored(root: Path, place: str = ".", factor: float = 1.0) -> InferenceProfile:
    made, samples = profiled.profile(factor, seed=int(factor * 10), name=root.name)
    folder = ProfileFolder(root, place)
    folder.write({SAMPLES_FILE: msgspec.json.encode(samples), "plots/a.png": b"x"})
    made = msgspec.structs.replace(made, place=place)
    folder.finish(made)
    folder.close()
    return made


def test_profiles_are_found_by_id_beginning_path_and_latest_as_they_were_written(
    tmp_path: Path,
) -> None:
    made = stored(tmp_path / FIRST)
    assert not list((tmp_path / FIRST).glob(".scratch*"))
    stored(tmp_path / SECOND)
    assert [path.name for path in profile_folders(tmp_path)] == [SECOND, FIRST]
    assert (tmp_path / "latest-profile").resolve().name == SECOND
    assert open_profile(tmp_path, "latest").profile.id == SECOND
    for reference in (FIRST, "20261122-10", str(tmp_path / FIRST)):
        found = open_profile(tmp_path, reference)
        assert found.profile == made
        assert len(found.measured()[1]) == 6
    for reference, model, said in (
        ("2026", None, "several profiles begin with"),
        ("profile-20261122-100000-0009", None, "did you mean"),
        (FIRST, "Other", "has no profile of Other"),
    ):
        with pytest.raises(UsageError, match=said):
            open_profile(tmp_path, reference, model)


def test_a_folder_without_a_record_is_an_interrupted_profile(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / FIRST)
    folder.write({"baseline_metrics.json": b"{}"})
    folder.close()
    with pytest.raises(UsageError, match="was interrupted"):
        open_profile(tmp_path, FIRST)
    assert list(profile_folders(tmp_path)) == []
    with pytest.raises(UsageError, match="compilewatch profile infer"):
        open_profile(tmp_path, "latest")
    ProfileFolder(tmp_path / SECOND).close()  # an unused folder disappears
    assert not (tmp_path / SECOND).exists()


def test_lost_and_damaged_values_and_a_newer_program(tmp_path: Path) -> None:
    made = stored(tmp_path / FIRST)
    found = open_profile(tmp_path, FIRST)
    (found.folder / SAMPLES_FILE).write_bytes(b"[")
    with pytest.raises(StoreError, match="is damaged"):
        found.measured()
    (found.folder / SAMPLES_FILE).unlink()
    assert found.measured() == (made, ())
    newer = msgspec.structs.replace(made, schema_version=made.schema_version + 1)
    append_record(tmp_path / FIRST / PROFILES_FILE, newer)
    with pytest.raises(StoreError, match="written by a newer compilewatch"):
        open_profile(tmp_path, FIRST)


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


def test_a_merged_run_has_the_profiles_of_its_parts_once_and_says_what_is_slower(
    tmp_path: Path,
) -> None:
    stored(tmp_path / "old", "profiles/net")
    stored(tmp_path / "part", "profiles/net", 1.3)
    merged = tmp_path / "merged"
    merged.mkdir()
    adopt_profiles(tmp_path / "part", merged)
    adopt_profiles(tmp_path / "part", merged)
    (old,), _ = read_profiles(tmp_path / "old")
    (new,), damaged = read_profiles(merged)
    assert damaged == ()
    assert (new.folder / "plots" / "a.png").read_bytes() == b"x"
    (note,) = slower_notes(compared_with([new], [old]))
    assert "is slower than in the baseline: inductor at batch 1 +" in note
    assert list(slower_notes(compared_with([old], [old]))) == []
    assert compared_with([new], ()) == ()
