"""Deleting runs, and the disk space that this frees.

A run is first renamed to a hidden name, in one step. If the process is killed afterwards, the rest
is not taken for a run, and the next `clear_deleted` deletes it.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from compilewatch.files import failed, sync_folder
from compilewatch.store.runs import RESULTS_FILE, hold

DELETED_PREFIX = ".deleted-"


def delete_run(path: Path) -> None:
    """Delete a run's folder. Raises StoreError if the run is being written."""
    hidden = path.with_name(DELETED_PREFIX + path.name)
    try:
        descriptor = os.open(path / RESULTS_FILE, os.O_RDWR)
    except FileNotFoundError:
        descriptor = -1
    except OSError as error:
        raise failed("delete", path, error) from None
    try:
        if descriptor >= 0:
            hold(descriptor, path)
        path.rename(hidden)
        sync_folder(path.parent)
        shutil.rmtree(hidden)
    except OSError as error:
        raise failed("delete", path, error) from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def clear_deleted(root: Path) -> None:
    """Delete the rest of runs whose deletion was interrupted. Raises StoreError."""
    for path in root.glob(f"{DELETED_PREFIX}*"):
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise failed("delete", path, error) from None


def run_bytes(path: Path) -> int:
    """Return the size of a run's files, including those that it shares with other runs."""
    return sum(status.st_size for status in _files(path))


def freed_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes that deleting these runs frees; files with further links free nothing."""
    links: Counter[tuple[int, int]] = Counter()
    freed = 0
    for path in paths:
        for status in _files(path):
            file = (status.st_dev, status.st_ino)
            links[file] += 1
            if links[file] == status.st_nlink:
                freed += status.st_size
    return freed


def _files(path: Path) -> Iterable[os.stat_result]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name))  # noqa: PTH118  (of a hundred thousand)
            except FileNotFoundError:
                continue  # it is being deleted right now
            except OSError as error:
                raise failed("read", Path(folder) / name, error) from None
