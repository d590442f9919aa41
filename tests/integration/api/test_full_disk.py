"""A disk that fills up during a sweep: what it does to children is not stored as what models do."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compilewatch.api.sweep import resume
from compilewatch.errors import CompilewatchError
from compilewatch.launchers.local import launcher as local
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Status, Target
from tests import factories
from tests.integration.launchers.conftest import bare_launcher, bare_python
from tests.sweeping import run_sweep, settings, store

__all__ = ["bare_launcher", "bare_python"]

Make = Callable[..., LocalLauncher]
ON_BARE = [Target(environment="bare")]
IN_BARE = {"environments": ["bare"]}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB; only the kernel shows what a full one does."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_and_is_freed_costs_no_result(
    small_disk: Path, bare_launcher: Make
) -> None:
    filler = small_disk / "filler"
    specs = [factories.spec(f"ok-{number}") for number in range(16)]
    specs[5] = factories.spec("fill_disk", checkpoint=str(filler))
    with pytest.raises(CompilewatchError, match="free some space") as stopped:
        run_sweep(small_disk, bare_launcher(), specs=specs, targets=ON_BARE, settings=dict(IN_BARE))
    assert "--resume" in str(stopped.value)
    interrupted = store(small_disk).unfinished()
    held = interrupted.results()
    assert {result.status for result in held} <= {Status.PASS}

    # Freed, with nothing left to fill: a folder cannot be opened for writing.
    filler.unlink()
    filler.mkdir()
    given = settings(small_disk, **IN_BARE)
    seen = resume(store(small_disk), bare_launcher(), given, interrupted)
    assert sorted(r.request.model.name for r in seen.results) == sorted(s.name for s in specs)
    assert {result.status for result in seen.results} == {Status.PASS}
    assert seen.run.state == "finished"


def test_a_child_that_could_not_write_for_a_moment_is_evaluated_again(
    bare_launcher: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(local, "check_free_space", looked.append)
    monkeypatch.setenv("BARE_WORKER_EXIT", "70")
    seen = run_sweep(
        tmp_path,
        bare_launcher(),
        specs=[factories.spec("exit")],
        targets=ON_BARE,
        settings=dict(IN_BARE),
    )
    # The second time it is the model's own doing: a model may end with any status.
    assert [(r.status, r.detail) for r in seen.results] == [
        (Status.CRASHED, "exit code 70 in create, without a result")
    ]
    assert len(looked) == 1
