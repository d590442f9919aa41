"""The artifacts of a run: where they are stored, and in which form.

A request with graph breaks would leave a dozen megabytes in a hundred files. Two things are
therefore not stored as the target wrote them:

- A structured trace (`torch_trace/NAME.log`) is compressed with zstd: `torch_trace/NAME.log.zst`.
- The pages that tlparse made from it (`tlparse/`) are packed into `tlparse.zip`. The copy of the
  trace (`raw.log`) and of most of it (`raw.jsonl`), which tlparse puts next to the pages and to
  which no page links, are left out.

`restore_artifacts` restores plain files.
"""

import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.files import failed, safe_name
from compilewatch.records import Request

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TRACE_FOLDER = "torch_trace"
TRACE_SUFFIX = ".zst"
TRACE_OPTIONS: dict[int, int] = {
    # Out of 22. 3 MB become 100 kB in 60 ms; level 15 saves another 5 % but takes 600 ms.
    zstd.CompressionParameter.compression_level: 9,
    zstd.CompressionParameter.checksum_flag: 1,
}

PAGES_FOLDER = "tlparse"
PAGES_FILE = "tlparse.zip"
COPIES_OF_TRACE = ("raw.log", "raw.jsonl")

# zipfile raises the last two for a damaged entry that claims encryption or an unknown format.
_DAMAGED = (zstd.ZstdError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


def artifacts_path(request: Request) -> str:
    """Return the folder of a request's artifacts in its run: `artifacts/<model>/<target>`."""
    target = target_label(request.target).replace("/", "-")
    if request.target.backend:
        target += f"-{safe_name(request.target.backend)}"
    return f"artifacts/{safe_name(request.model.name)}/{target}"


def keep_artifacts(folder: Path, run_folder: Path, request: Request) -> tuple[str, ...]:
    """Move a folder of artifacts into the run, in place of those of an earlier attempt.

    Returns the stored files, relative to the run and sorted. Raises OSError.
    """
    condense(folder)
    destination = run_folder / artifacts_path(request)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if _is_plain_file(p))
    if destination.exists():
        shutil.rmtree(destination)
    if not files:
        shutil.rmtree(folder, ignore_errors=True)
        return ()
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, destination)
    return tuple((destination / name).relative_to(run_folder).as_posix() for name in files)


def link_artifacts(names: tuple[str, ...], source: Path, run_folder: Path) -> tuple[str, ...]:
    """Link another run's artifacts into a run, or copy them where links are impossible.

    Returns the names of the linked files; files that the other run has lost are left out. Raises
    OSError.
    """
    kept = []
    for name in names:
        origin, place = source / name, run_folder / name
        # A run may come from another machine: its paths must stay inside its folder.
        if not _is_inside(name) or not _is_plain_file(origin):
            continue
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(origin, place)
            except OSError:
                shutil.copyfile(origin, place)
        kept.append(name)
    return tuple(kept)


def restore_artifacts(names: Iterable[str], source: Path, destination: Path) -> tuple[Path, ...]:
    """Write a run's artifacts as the targets wrote them, to `destination/<target>/…`.

    Returns the files. Files that the run has lost are left out. Raises StoreError, also for a
    damaged file.
    """
    written: list[Path] = []
    for name in names:
        origin = source / name
        if not _is_inside(name) or not _is_plain_file(origin):
            continue
        place = destination.joinpath(*Path(name).parts[2:])
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.name == PAGES_FILE:
                written += _unpack(origin, place.with_name(PAGES_FOLDER))
            elif place.suffix == TRACE_SUFFIX:
                trace = place.with_suffix("")
                trace.write_bytes(zstd.decompress(origin.read_bytes()))
                written.append(trace)
            else:
                written.append(shutil.copyfile(origin, place))
        except OSError as error:
            raise failed("write", place, error) from None
        except _DAMAGED as error:
            raise StoreError(
                f"{origin} is damaged ({error}): restore it from a backup, or sweep with --fresh"
            ) from None
    return tuple(written)


def condense(folder: Path) -> None:
    """Convert the files that a target left in a folder to their stored form. Raises OSError."""
    pages = folder / PAGES_FOLDER
    if pages.is_dir():
        _pack(pages, folder / PAGES_FILE)
        shutil.rmtree(pages)
    for trace in (folder / TRACE_FOLDER).glob("*.log"):
        packed = zstd.compress(trace.read_bytes(), options=TRACE_OPTIONS)
        trace.with_name(trace.name + TRACE_SUFFIX).write_bytes(packed)
        trace.unlink()


def _pack(pages: Path, destination: Path) -> None:
    files = sorted(path for path in pages.rglob("*") if _is_plain_file(path))
    with zipfile.ZipFile(destination, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            name = file.relative_to(pages).as_posix()
            if name not in COPIES_OF_TRACE:
                packed.write(file, f"{PAGES_FOLDER}/{name}")


def _unpack(packed: Path, pages: Path) -> list[Path]:
    with zipfile.ZipFile(packed) as opened:
        if damaged := opened.testzip():
            raise zipfile.BadZipFile(f"{damaged!r} does not match its checksum")
        return [Path(opened.extract(member, pages.parent)) for member in opened.infolist()]


def _is_inside(name: str) -> bool:
    parts = Path(name).parts
    return parts[:1] == ("artifacts",) and ".." not in parts


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
