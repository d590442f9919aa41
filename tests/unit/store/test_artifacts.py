"""How artifacts are stored, and made plain again; with disks that fill up and files that rot."""

import errno
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import StoreError
from compilewatch.records import Mode, Target
from compilewatch.store.artifacts import (  # type: ignore[attr-defined]
    artifacts_path,
    keep_artifacts,
    link_artifacts,
    restore_artifacts,
    zstd,
)
from tests import factories

REQUEST = factories.request("org/model")
FOLDER = "artifacts/org--model/dynamo"
TRACE = "".join(f'V1122 {number} {{"frame_id": {number % 7}}}\n' for number in range(9000))
LEFT = {
    "torch_trace/dedicated_log.log": TRACE,
    "tlparse/raw.log": TRACE,
    "tlparse/raw.jsonl": TRACE[:9000],
    "tlparse/index.html": "<a href='-_0_0_0/guards_1.txt'>",
    "tlparse/-_0_0_0/guards_1.txt": "| +- GUARD: L['x'] is é\n" * 5000,
    "draft_export.txt": "report",
}
"""What a target leaves; tlparse puts the trace beside its pages again."""
PLAIN = {name: text for name, text in LEFT.items() if "/raw." not in name}
KEPT = tuple(
    f"{FOLDER}/{name}"
    for name in ("draft_export.txt", "tlparse.zip", "torch_trace/dedicated_log.log.zst")
)


def lay_out(folder: Path) -> Path:
    for name, text in LEFT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "torch_trace" / "dedicated_log.log").chmod(0o600)  # as torch writes it
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> tuple[str, ...]:
    return keep_artifacts(lay_out(tmp_path / "scratch"), tmp_path / "run", REQUEST)


def test_a_trace_is_stored_once_and_compressed(tmp_path: Path, kept: tuple[str, ...]) -> None:
    assert kept == KEPT
    run = tmp_path / "run"
    there = [path for path in run.rglob("*") if path.is_file()]
    assert {path.relative_to(run).as_posix() for path in there} == set(KEPT)
    assert len({stat.S_IMODE(path.stat().st_mode) for path in there}) == 1
    trace = (run / KEPT[2]).read_bytes()
    assert zstd.decompress(trace).decode() == TRACE
    assert len(trace) * 9 < len(TRACE)
    with zipfile.ZipFile(run / KEPT[1]) as pages:
        names = set(pages.namelist())
    assert names == {name for name in PLAIN if name.startswith("tlparse/")}
    assert (run / KEPT[1]).stat().st_size < 3000


def test_what_is_stored_is_restored_as_it_was(tmp_path: Path, kept: tuple[str, ...]) -> None:
    for _ in range(2):  # again, in the same place
        written = restore_artifacts(kept, tmp_path / "run", tmp_path / "out")
    restored = {path.relative_to(tmp_path / "out").as_posix(): path.read_text() for path in written}
    assert restored == {f"dynamo/{name}": text for name, text in PLAIN.items()}


@pytest.mark.parametrize("full", ["Path.write_bytes", "zipfile.ZipFile.write"])
def test_a_disk_that_fills_up_costs_nothing_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    scratch = lay_out(tmp_path / "scratch")

    def write(self: object, *args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"compilewatch.store.artifacts.{full}", write)
    with pytest.raises(OSError, match="No space"):
        keep_artifacts(scratch, tmp_path / "run", REQUEST)
    left = {p.relative_to(scratch).as_posix() for p in scratch.rglob("*") if p.is_file()}
    assert left <= {*LEFT, "tlparse.zip"}, "nothing half-written"
    assert (scratch / "torch_trace" / "dedicated_log.log").read_text() == TRACE
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", KEPT[1:])
def test_a_damaged_file_is_one_line(tmp_path: Path, kept: tuple[str, ...], name: str) -> None:
    path, out = tmp_path / "run" / name, tmp_path / "out"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[80] ^= 0xFF  # among the compressed bytes
    for data in (whole[:-9], whole[: len(whole) // 2], b"", b"\x1f\x8b", flipped):
        path.write_bytes(data)
        with pytest.raises(StoreError, match=r"is damaged \(.+\): restore it") as told:
            restore_artifacts([name], tmp_path / "run", out)
        assert str(path) in str(told.value)
        assert "\n" not in str(told.value)
        assert not [left for left in out.rglob("*") if left.is_file()]


def test_a_foreign_run_cannot_have_files_written_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "run" / "artifacts").mkdir(parents=True)
    names = ("artifacts/../../secret", str(tmp_path / "secret"), "secret")
    for take in (restore_artifacts, link_artifacts):
        assert take(names, tmp_path / "run", tmp_path / "out") == ()


def test_targets_and_backends_have_folders_of_their_own() -> None:
    options: list[dict[str, Any]] = [{}, {"mode": Mode.TRAIN}, {"dynamic": True}]
    targets = [Target(**given) for given in (*options, {"backend": "inductor"})]
    paths = {artifacts_path(factories.request("org/model", target=t)) for t in targets}
    assert len(paths) == len(targets)
    assert FOLDER in paths


def test_artifacts_are_moved_and_replace_those_of_an_unfinished_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    left_over = run / FOLDER / "old.log"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("old")
    fresh = tmp_path / "scratch"
    (fresh / "trace").mkdir(parents=True)
    (fresh / "trace" / "a.log").write_text("a")
    (fresh / "b.txt").write_text("b")
    (fresh / "link").symlink_to("/etc/hostname")

    names = keep_artifacts(fresh, run, REQUEST)

    assert names == (f"{FOLDER}/b.txt", f"{FOLDER}/trace/a.log")
    assert [(run / name).read_text() for name in names] == ["b", "a"]
    assert not left_over.exists()
    assert not fresh.exists()
    fresh.mkdir()
    assert keep_artifacts(fresh, tmp_path / "other", REQUEST) == ()
    assert not (tmp_path / "other").exists()


def test_linked_artifacts_outlive_the_run_they_came_from(tmp_path: Path) -> None:
    source = tmp_path / "old" / "artifacts" / "m" / "dynamo"
    source.mkdir(parents=True)
    (source / "a.log").write_text("a")
    names = ("artifacts/m/dynamo/a.log", "artifacts/m/dynamo/lost.log")

    kept = link_artifacts(names, tmp_path / "old", tmp_path / "new")
    (source / "a.log").unlink()

    assert kept == ("artifacts/m/dynamo/a.log",)
    assert (tmp_path / "new" / kept[0]).read_text() == "a"
