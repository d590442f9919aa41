import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compilewatch.store import Store, freed_bytes, run_bytes
from tests import factories
from tests.unit.store.conftest import Stored

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from compilewatch.store import Store

def first_file_then_killed(path):
    next(p for p in sorted(Path(path).rglob("*")) if p.is_file()).unlink()
    os.kill(os.getpid(), signal.SIGKILL)

shutil.rmtree = first_file_then_killed
store = Store(Path(sys.argv[1]))
store.delete_run(store.open(sys.argv[2]))
"""


@pytest.mark.process
def test_a_kill_in_the_middle_leaves_nothing_that_is_taken_for_a_run(
    store: Store, stored: Stored
) -> None:
    first, second = stored(factories.result("A")), stored(factories.result("B"))
    assert len(store.lookup_many(["key of A"])) == 1
    command = [sys.executable, "-c", KILLED, str(store.root), first]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL

    (left,) = store.root.glob(".deleted-*")
    assert left.is_dir()
    runs, problems = store.scan()
    assert [one.run.id for one in runs] == [second]
    assert problems == ()
    assert store.lookup_many(["key of A"]) == {}
    store.clear_deleted()
    assert not left.exists()


def test_what_other_runs_share_frees_nothing(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("old", "newer", "newest")]
    for run in runs:
        (run / "artifacts").mkdir(parents=True)
        (run / "results.jsonl").write_bytes(b"r" * 10)
    (runs[0] / "artifacts" / "trace").write_bytes(b"t" * 1000)
    (runs[0] / "artifacts" / "link").symlink_to("/etc/hostname")
    for run in runs[1:]:
        os.link(runs[0] / "artifacts" / "trace", run / "artifacts" / "trace")
    size = run_bytes(runs[1])
    assert size == 1010
    assert freed_bytes(runs[1:]) == 20
    shutil.rmtree(runs[0])
    assert freed_bytes(runs[1:]) == 1020
