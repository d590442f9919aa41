"""`fixes.jsonl` in the folder of a run: what was found, with the scripts of the verifications.

A script is written first and its line last. The newest line of a key counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes.fixing import Limits
from compilewatch.extras.fixes.of_run.cases import Key
from compilewatch.extras.fixes.records import FIXES_VERSION, LATE, FixStatus, RunFix
from compilewatch.files import safe_name
from compilewatch.store import RunFolder
from compilewatch.store.journal import append_record, read_records

FILE = "fixes.jsonl"
FOLDER = "fixes"


@cache
def search_digest() -> str:
    """Return a digest of the code that searches and verifies."""
    folder = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if Path(__file__).parent not in path.parents:
            total.update(f"{path.relative_to(folder)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


class FixJournal:
    """The fixes of the run in a folder. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self) -> tuple[dict[Key, RunFix], tuple[str, ...]]:
        """Return what is stored by key, and one line for each line that cannot be read."""
        found, damaged = read_records(self._root / FILE, RunFix, FIXES_VERSION)
        return {key_of(entry): entry for entry in found}, damaged

    def done(self, limits: Limits) -> dict[Key, RunFix]:
        """Return what need not be searched again.

        What is verified stays so. Where nothing was, another version of the search may find it, and
        a search that a limit ended may come further with a larger one.
        """
        return {key: each for key, each in self.read()[0].items() if _is_final(each, limits)}

    def append(self, found: RunFix) -> RunFix:
        """Store a fix with its script; return it as stored."""
        folder = RunFolder(self._root)
        name = ""
        if found.fix.script:
            label = safe_name(target_label(found.target))
            name = f"{FOLDER}/{safe_name(found.model)}/{label}.py"
            folder.write(name, found.fix.script.encode())
        fix = msgspec.structs.replace(found.fix, script="")
        stored = msgspec.structs.replace(found, fix=fix, script_file=name)
        append_record(self._root / FILE, stored)
        return stored

    def adopt(self, other: FixJournal, wanted: Iterable[Key], limits: Limits | None = None) -> int:
        """Copy fixes of another run by key, with their scripts; return how many.

        With `limits`, only those that need not be searched again. What is here already stays.
        """
        here, theirs = self.read()[0], other.read()[0]
        count = 0
        for key in wanted:
            found = theirs.get(key)
            if found is None or key in here or (limits and not _is_final(found, limits)):
                continue
            if found.script_file:
                try:
                    script = (other._root / found.script_file).read_bytes()
                except OSError:
                    continue  # a fix without its verification is none: it is searched again
                RunFolder(self._root).write(found.script_file, script)
            reused = found.reused_from or other._root.name
            append_record(self._root / FILE, msgspec.structs.replace(found, reused_from=reused))
            count += 1
        return count


def adopt_fixes(source: Path, target: Path) -> None:
    """Copy the fixes of one run into another that it is merged into."""
    other = FixJournal(source)
    FixJournal(target).adopt(other, other.read()[0])


def key_of(found: RunFix) -> Key:
    return found.key, found.model, found.target.environment


def _is_final(found: RunFix, limits: Limits) -> bool:
    if found.fix.verification is not None:
        return True
    late = any(rejection.reason.startswith(LATE) for rejection in found.fix.rejections)
    if late or found.fix.status is FixStatus.NO_VERDICT:
        return False  # a timeout, which another time may not come
    larger = limits.evaluations > found.max_evaluations or limits.seconds > found.max_seconds
    return found.search == search_digest() and not (found.fix.limit and larger)
