import errno
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compilewatch import files
from compilewatch.errors import StoreError

# Mostly what looks like a name, so that what would collide comes up.
NAMES = st.text("aB1/._- ", max_size=8) | st.text(max_size=2 * files.NAME_LENGTH)


@given(NAMES)
@example("../../etc/passwd")
@example("..")
@example("--flag")
@example("")
def test_any_name_is_one_portable_file_name(name: str) -> None:
    safe = files.safe_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", safe)
    assert len(safe) <= files.NAME_LENGTH
    assert Path("folder", safe).resolve().parent == Path("folder").resolve()
    assert files.safe_name("meta-llama/Llama-3.2-1B") == "meta-llama--Llama-3.2-1B"


@given(NAMES, NAMES)
@example("a/b", "a--b")
@example("a b", "a_b")
@example("x" * (files.NAME_LENGTH + 1), "x" * (files.NAME_LENGTH + 2))
def test_two_names_are_two_file_names(one: str, other: str) -> None:
    assert (files.safe_name(one) == files.safe_name(other)) == (one == other)


def test_a_short_write_is_completed_and_one_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    files.append_all(descriptor, b"whole\n")
    real = os.write
    calls = []

    def short_then_full(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            return real(fd, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    files.append_all(descriptor, b"completed\n")
    monkeypatch.setattr(os, "write", short_then_full)
    with pytest.raises(OSError, match="No space"):
        files.append_all(descriptor, b"another\n")
    os.close(descriptor)
    assert path.read_bytes() == b"whole\ncompleted\n"


def test_an_atomic_write_leaves_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report" / "index.html"
    files.write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(StoreError, match="disk is full"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]


def test_a_failure_says_what_to_do_even_where_we_know_no_advice() -> None:
    known = files.failed("write", Path("/x"), OSError(errno.EROFS, "Read-only file system"))
    assert str(known) == (
        "cannot write /x: the file system is read-only; choose another folder with --output"
    )
    unknown = files.failed("write", Path("/x"), OSError(errno.ENAMETOOLONG, "File name too long"))
    assert str(unknown) == "cannot write /x: File name too long"


HOLDING = """
import time
from compilewatch.files import temporary_folder

with temporary_folder() as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.process
def test_the_temporary_folder_of_a_killed_process_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", HOLDING], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().decode().strip())
        (folder / "cache").mkdir()
        with files.temporary_folder() as own:
            assert {path.name for path in tmp_path.iterdir()} == {folder.name, Path(own).name}
        process.kill()
        process.wait()
        with files.temporary_folder() as own:
            assert {path.name for path in tmp_path.iterdir()} == {Path(own).name}
    assert list(tmp_path.iterdir()) == []
