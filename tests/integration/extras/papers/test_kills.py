"""`kill -9` at the border of each stage: nothing that was paid for is lost or repeated.

Each case starts a process that imports boto3, which takes seconds; only a real kill shows that
what was written before it is there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compilewatch.extras.papers.pipeline import Observer
from compilewatch.extras.papers.providers import ScriptedProvider
from compilewatch.extras.papers.records import CallState, PaperSummary, PipelineStage, StageResult
from compilewatch.extras.papers.store import PaperFolder, PaperStore
from tests import papers as world


def run(outputs: Path, observer: Observer = lambda _: None) -> tuple[PaperSummary, ...]:
    """Run the shipped papers on prepared replies."""
    papers = world.papers_of(world.INPUTS / "library", outputs / "cache", 3)
    provider = ScriptedProvider(world.REPLIES)
    return world.pipeline(outputs, provider, papers, observer=observer).run(papers)


def killed(outputs: Path, stage: str, when: str) -> None:
    """Run them and kill this process at the border of a stage."""
    append = PaperFolder.append

    def kill(result: StageResult) -> None:
        if result.stage == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    def killed_before(folder: PaperFolder, result: StageResult) -> None:
        kill(result)
        append(folder, result)

    if when == "before":
        PaperFolder.append = killed_before  # type: ignore[method-assign,assignment]
    run(outputs, kill)


@pytest.mark.parametrize(
    ("stage", "when"),
    [
        pytest.param(s, "after" if n % 2 else "before", marks=[pytest.mark.matrix] if n else [])
        for n, s in enumerate(list(PipelineStage)[:9])
    ],
)
def test_a_run_that_is_killed_continues_where_it_was(
    tmp_path: Path, stage: PipelineStage, when: str
) -> None:
    command = [sys.executable, "-m", __name__, str(tmp_path), stage, when]
    done = subprocess.run(command, check=False, timeout=100, cwd=Path(__file__).parents[4])
    assert done.returncode == -signal.SIGKILL
    before = PaperStore(tmp_path).ledger.entries()
    summaries = run(tmp_path)
    assert [one.state for one in summaries] == ["passed"] * 3
    entries = PaperStore(tmp_path).ledger.entries()
    assert entries[: len(before)] == before
    finished = Counter(e.key for e in entries if e.state is CallState.FINISHED)
    assert set(finished.values()) == {1}
    assert len(entries) == len(finished) == 9
    for one in summaries:
        keys = [(r.stage, r.key) for r in PaperStore(tmp_path).folder(one.paper).journal()]
        assert len(keys) == len(set(keys))


if __name__ == "__main__":
    killed(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
