"""`kill -9` at the border of each stage: nothing that was paid for is lost or repeated.

Each case starts two processes that import boto3, which takes seconds; only a real kill shows that
what was written before it is there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compilewatch.extras.papers.providers import ScriptedProvider
from compilewatch.extras.papers.records import CallState, PipelineStage
from compilewatch.extras.papers.store import PaperStore
from tests import papers as world

BORDERS = list(PipelineStage)[:9]


@pytest.mark.parametrize(
    ("stage", "when"),
    [
        pytest.param(s, "after" if n % 2 else "before", marks=[pytest.mark.matrix] if n else [])
        for n, s in enumerate(BORDERS)
    ],
)
def test_a_run_that_is_killed_continues_where_it_was(
    tmp_path: Path, stage: PipelineStage, when: str
) -> None:
    script = "tests.integration.extras.papers.killed"
    command = [sys.executable, "-m", script, str(tmp_path), stage, when]
    done = subprocess.run(command, check=False, timeout=100, cwd=Path(__file__).parents[4])
    assert done.returncode == -signal.SIGKILL
    before = PaperStore(tmp_path).ledger.entries()
    papers = world.papers_of(world.INPUTS / "library", tmp_path / "cache", 3)
    provider = ScriptedProvider(world.REPLIES)
    pipeline = world.pipeline(tmp_path, provider, world.INPUTS / "library", papers)
    summaries = pipeline.run(papers)
    provider.close()
    assert [one.state for one in summaries] == ["passed"] * 3
    entries = PaperStore(tmp_path).ledger.entries()
    assert entries[: len(before)] == before
    finished = Counter(e.key for e in entries if e.state is CallState.FINISHED)
    assert set(finished.values()) == {1}
    assert len(entries) == len(finished) == 9
    for one in papers:
        keys = [(r.stage, r.key) for r in PaperStore(tmp_path).folder(one.id).journal()]
        assert len(keys) == len(set(keys))
