"""Several papers at a time: the ledger stays equal to the requests, and budgets hold exactly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from compilewatch.config import load_settings
from compilewatch.errors import ProviderError
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from compilewatch.extras.papers.calls import Budget
from compilewatch.extras.papers.execution import DeviceTime, Trainer, seconds_of
from compilewatch.extras.papers.providers import Dropped, ErrorResponse, Response
from compilewatch.extras.papers.records import (
    CallState,
    CodeVersion,
    FindingClass,
    ModelCall,
    PipelineStage,
    StageResult,
)
from compilewatch.extras.papers.store import PaperFolder, PaperStore
from tests import papers as world
from tests.integration.extras.papers.test_calls import THROTTLED, UNAVAILABLE, Faulty

JOBS = 5


class Slow(Faulty):
    """Replies after a moment, so that requests of several papers overlap."""

    most = now = 0

    def __call__(self, model: str, body: dict[str, Any]) -> Response:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self._lock:
            self.now -= 1
        return super().__call__(model, body)


def used(entries: tuple[ModelCall, ...]) -> tuple[float, int]:
    usd = sum(entry.usd or 0.0 for entry in entries)
    return usd, sum(entry.input_tokens + entry.output_tokens for entry in entries)


@pytest.mark.matrix
def test_twenty_papers_at_a_time_every_request_is_in_the_ledger(tmp_path: Path) -> None:
    """Five throttles, two 503, a dropped connection and a stall; takes the stall's time."""
    faults: dict[int, Response] = dict.fromkeys((2, 3, 11, 12, 30), THROTTLED)
    faults |= {7: UNAVAILABLE, 20: UNAVAILABLE, 15: Dropped(), 25: Dropped(seconds=3)}
    slow = Slow(faults)
    papers = world.some_papers(tmp_path, 20)
    with world.served(slow, read_timeout=1.0) as (server, provider):
        pipeline = world.pipeline(tmp_path, provider, tmp_path / "papers", papers)
        summaries = pipeline.run(papers, JOBS)
        entries = PaperStore(tmp_path).ledger.entries()
        # On a busy machine more requests can take longer than a second.
        assert len(entries) == len(server.requests) == pipeline.caller.requests >= 20 * 3 + 9
    assert slow.most > 1
    assert [one.paper for one in summaries] == [paper.id for paper in papers]
    assert [one.state for one in summaries] == ["passed"] * 20
    assert [entry.entry for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.state for entry in entries} == {CallState.FINISHED, CallState.FAILED}
    # Whether a request that was dropped or stalled was charged is unknown: it counts as charged.
    charged = [entry for entry in entries if entry.state is CallState.FAILED and entry.usd]
    assert len(charged) >= 2


@pytest.mark.parametrize(
    ("budget", "usd", "tokens"),
    [
        (Budget(max_usd=0.50), 0.50, 10**9),
        (Budget(max_tokens=60_000), 10**9, 60_000),
    ],
)
def test_a_budget_holds_whatever_is_on_its_way(
    tmp_path: Path, budget: Budget, usd: float, tokens: int
) -> None:
    papers = world.some_papers(tmp_path, 20)
    highest = [0.0, 0.0]

    def respond(model: str, body: dict[str, Any]) -> Response:
        # What the ledger has reserved and spent while requests are on their way.
        found = used(PaperStore(tmp_path).ledger.entries())
        highest[:] = [max(pair) for pair in zip(highest, found, strict=True)]
        return world.respond(model, body)

    with world.served(respond) as (_, provider):
        pipeline = world.pipeline(tmp_path, provider, tmp_path / "papers", papers, budget=budget)
        summaries = pipeline.run(papers, JOBS)
    assert highest[0] <= usd
    assert highest[1] <= tokens
    states = [one.state for one in summaries]
    assert {"passed", "failed"} == set(states)
    for one in summaries:
        if one.state == "failed":
            assert [finding.kind for finding in one.findings] == [FindingClass.BUDGET]


def test_a_budget_of_each_paper_holds_before_a_call(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 2)
    budget = Budget(max_tokens_per_paper=12_000)
    with world.served() as (server, provider):
        pipeline = world.pipeline(tmp_path, provider, tmp_path / "papers", papers, budget=budget)
        summaries = pipeline.run(papers, JOBS)
        assert 0 < len(server.requests) < 6
    for one in summaries:
        assert [finding.kind for finding in one.findings] == [FindingClass.BUDGET]
        assert "for this paper" in one.findings[0].evidence


def test_a_request_whose_process_was_killed_counts_with_all_its_tokens(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 1)
    folder = tmp_path / "papers"
    with world.served() as (_, provider):
        world.pipeline(tmp_path, provider, folder, papers).run(papers)
    ledger = PaperStore(tmp_path).ledger
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(lines[0])  # `started`, and no end
    (entry,) = PaperStore(tmp_path).ledger.entries()
    assert entry.state is CallState.STARTED
    budget = Budget(max_tokens=entry.input_tokens + entry.output_tokens)
    (tmp_path / "papers" / papers[0].id / "journal.jsonl").unlink()
    with world.served() as (server, provider):
        pipeline = world.pipeline(tmp_path, provider, folder, papers, budget=budget)
        (one,) = pipeline.run(papers)
        assert server.requests == []
    assert [finding.kind for finding in one.findings] == [FindingClass.BUDGET]


def test_a_model_that_cannot_be_used_ends_the_run_once(tmp_path: Path) -> None:
    def respond(model: str, body: dict[str, Any]) -> Response:
        return ErrorResponse(status=404, code="ResourceNotFoundException", message="no such model")

    papers = world.some_papers(tmp_path, 20)
    with world.served(respond) as (server, provider):
        pipeline = world.pipeline(tmp_path, provider, tmp_path / "papers", papers)
        with pytest.raises(ProviderError):
            pipeline.run(papers, JOBS)
        assert len(server.requests) <= JOBS


class Training(Trainer):
    """A training that takes some of its deadline, by its own account."""

    def __init__(self, seconds: float, time_used: float) -> None:
        limits = SandboxLimits(deadline_seconds=100.0)
        allowed = DeviceTime(most=320.0, used=time_used)
        super().__init__(settings=load_settings(), limits=limits, time=allowed)
        self.seconds = seconds
        self.runs = 0

    def train(self, generation: CodeVersion, folder: PaperFolder) -> StageResult:
        self.runs += 1
        time.sleep(0.01)
        numbers = {"execution_time_seconds": self.seconds, "training_loss": 1.0}
        return StageResult(stage=PipelineStage.EXECUTE, numbers=numbers)


@pytest.mark.parametrize(("seconds", "runs"), [(100.0, 3), (40.0, 6), (0.0, 9)])
def test_the_time_of_training_holds_before_a_training(
    tmp_path: Path, seconds: float, runs: int
) -> None:
    """320 s: three trainings of 100 s; of 40 s, six end before less than 100 s are left."""
    papers = world.some_papers(tmp_path, 9)
    total_runs = 0
    with world.served() as (_, provider):
        for _ in range(2):
            training = Training(seconds, total_runs * seconds)
            summaries = world.pipeline(
                tmp_path, provider, tmp_path / "papers", papers, trainer=training
            ).run(papers, JOBS)
            total_runs += training.runs
    assert total_runs == runs
    kinds = {finding.kind for one in summaries for finding in one.findings}
    assert kinds == (set() if runs == 9 else {FindingClass.BUDGET})
    store = PaperStore(tmp_path)
    total = sum(seconds_of(store.folder(paper.id).journal()) for paper in papers)
    assert total == runs * seconds <= 320.0
