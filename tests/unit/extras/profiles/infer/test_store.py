"""Stored profiles: written last, read whole or not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError, UsageError
from compilewatch.extras.profiles.infer.records import InferenceProfile
from compilewatch.extras.profiles.infer.store import (
    PROFILES_FILE,
    SAMPLES_FILE,
    ProfileFolder,
    open_profile,
    profile_folders,
    read_profiles,
)
from compilewatch.store.journal import append_record
from tests import profiled

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
