from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from compilewatch.errors import StoreError
from compilewatch.records import Mode, Target
from compilewatch.store.files import (
    NAME_LENGTH,
    artifacts_path,
    failed,
    keep_artifacts,
    link_artifacts,
    safe_name,
    write_atomically,
    write_whole,
)
from tests import factories


def test_a_hub_name_becomes_one_file_name() -> None:
    assert safe_name("meta-llama/Llama-3.2-1B") == "meta-llama--Llama-3.2-1B"
    assert safe_name("BertModel") == "BertModel"


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", ".hidden", "a b", "é/ü", "x" * 400, ""])
def test_no_name_leaves_its_folder_or_is_too_long(name: str) -> None:
    safe = safe_name(name)
    assert "/" not in safe
    assert not safe.startswith(".")
    assert 0 < len(safe) <= NAME_LENGTH


def test_names_that_look_alike_stay_apart() -> None:
    names = ["a/b", "a--b", "a b", "a_b", "x" * 400, "x" * 401]
    assert len({safe_name(name) for name in names}) == len(names)


def test_targets_and_backends_have_folders_of_their_own() -> None:
    targets = [
        Target(),
        Target(mode=Mode.TRAIN),
        Target(dynamic=True),
        Target(backend="inductor"),
    ]
    paths = {artifacts_path(factories.request("org/model", target=t)) for t in targets}
    assert len(paths) == len(targets)
    assert "artifacts/org--model/dynamo" in paths


def test_artifacts_are_moved_and_replace_those_of_an_unfinished_attempt(tmp_path: Path) -> None:
    request = factories.request("org/model")
    run = tmp_path / "run"
    left_over = run / artifacts_path(request) / "old.log"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("old")
    fresh = tmp_path / "scratch"
    (fresh / "trace").mkdir(parents=True)
    (fresh / "trace" / "a.log").write_text("a")
    (fresh / "b.txt").write_text("b")
    (fresh / "link").symlink_to("/etc/hostname")

    names = keep_artifacts(fresh, run, request)

    folder = "artifacts/org--model/dynamo"
    assert names == (f"{folder}/b.txt", f"{folder}/trace/a.log")
    assert [(run / name).read_text() for name in names] == ["b", "a"]
    assert not left_over.exists()
    assert not fresh.exists()


def test_an_empty_folder_of_artifacts_leaves_nothing(tmp_path: Path) -> None:
    fresh = tmp_path / "scratch"
    fresh.mkdir()
    assert keep_artifacts(fresh, tmp_path / "run", factories.request()) == ()
    assert not (tmp_path / "run").exists()


def test_linked_artifacts_outlive_the_run_they_came_from(tmp_path: Path) -> None:
    source = tmp_path / "old" / "artifacts" / "m" / "dynamo"
    source.mkdir(parents=True)
    (source / "a.log").write_text("a")
    names = ("artifacts/m/dynamo/a.log", "artifacts/m/dynamo/lost.log")

    kept = link_artifacts(names, tmp_path / "old", tmp_path / "new")
    (source / "a.log").unlink()

    assert kept == ("artifacts/m/dynamo/a.log",)
    assert (tmp_path / "new" / kept[0]).read_text() == "a"


def test_a_foreign_run_cannot_name_files_outside_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "old" / "artifacts").mkdir(parents=True)
    names = ("artifacts/../../secret", str(tmp_path / "secret"), "secret")
    assert link_artifacts(names, tmp_path / "old", tmp_path / "new") == ()


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    write_whole(descriptor, b"whole\n")
    real = os.write
    calls = []

    def short_then_full(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            return real(fd, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", short_then_full)
    with pytest.raises(OSError, match="No space"):
        write_whole(descriptor, b"another\n")
    os.close(descriptor)
    assert path.read_bytes() == b"whole\n"


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    write_whole(descriptor, b"0123456789\n")
    os.close(descriptor)
    assert path.read_bytes() == b"0123456789\n"


def test_an_atomic_write_leaves_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report" / "index.html"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(StoreError, match="disk is full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]


def test_a_failure_says_what_to_do_even_where_we_know_no_advice() -> None:
    known = failed("write", Path("/x"), OSError(errno.EROFS, "Read-only file system"))
    assert str(known) == (
        "cannot write /x: the file system is read-only; choose another folder with --output"
    )
    unknown = failed("write", Path("/x"), OSError(errno.ENAMETOOLONG, "File name too long"))
    assert str(unknown) == "cannot write /x: File name too long"
