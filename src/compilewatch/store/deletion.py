"""Deleting runs, and what that frees.

A run gives up its name first, in one step: what a kill leaves behind is hidden, is taken for a run
by nothing, and is deleted by the next `clear_deleted`.
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
    """Delete a run's folder. Raises StoreError for one that is being written."""
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
    """Delete what was left of runs when a deletion was cut short. Raises StoreError."""
    for path in root.glob(f"{DELETED_PREFIX}*"):
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise failed("delete", path, error) from None


def run_bytes(path: Path) -> int:
    """The size of a run's files, those that it shares with other runs included."""
    return sum(status.st_size for status in _files(path))


def freed_bytes(paths: Iterable[Path]) -> int:
    """What deleting these runs frees: a file that others link to as well frees nothing."""
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
