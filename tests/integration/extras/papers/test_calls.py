"""The real client of boto3 and a server with Bedrock's wire format: faults, budgets, a rerun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import ProviderError, SandboxError
from compilewatch.extras.papers import Reply
from compilewatch.extras.papers.calls import Budget
from compilewatch.extras.papers.providers import ErrorResponse, Response
from compilewatch.extras.papers.records import CallState, FindingClass, PipelineStage, StageOutcome
from compilewatch.extras.papers.store import PaperStore
from tests import papers as world
from tests.papers import FakeChecker, FakeRunner

THROTTLED = ErrorResponse(status=429, code="ThrottlingException", message="Too many requests")
UNAVAILABLE = ErrorResponse(status=503, code="ServiceUnavailableException")


class Faulty:
    """Replies, but to the requests whose numbers are in `faults` with a fault."""

    def __init__(self, faults: dict[int, Response]) -> None:
        self._faults = faults
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, model: str, body: dict[str, Any]) -> Response:
        with self._lock:
            self.count += 1
            number = self.count
        return self._faults.get(number) or world.respond(model, body)


def test_a_second_run_sends_nothing_and_runs_nothing(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 3)
    with world.served() as (server, provider):
        first = world.pipeline(tmp_path, provider, tmp_path / "papers", papers).run(papers)
        sent = len(server.requests)
        files = {p: p.read_bytes() for p in (tmp_path / "papers").rglob("*") if p.is_file()}
        runner = FakeRunner()
        sweeper, executor = map(FakeChecker, (PipelineStage.SWEEP, PipelineStage.EXECUTE))
        again = world.pipeline(
            tmp_path,
            provider,
            tmp_path / "papers",
            papers,
            runner=runner,
            sweeper=sweeper,
            trainer=executor,
        ).run(papers)
        assert len(server.requests) == sent == 9
    assert (runner.runs, sweeper.runs, executor.runs) == (0, 0, 0)
    assert again == first
    assert {p: p.read_bytes() for p in (tmp_path / "papers").rglob("*") if p.is_file()} == files


def test_a_budget_holds_before_a_call(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 20)
    budget = Budget(max_usd=0.50)
    with world.served() as (server, provider):
        pipeline = world.pipeline(tmp_path, provider, tmp_path / "papers", papers, budget=budget)
        summaries = pipeline.run(papers)
        sent = len(server.requests)
        # Running again with the same limit spends nothing more.
        pipeline = world.pipeline(tmp_path, provider, tmp_path / "papers", papers, budget=budget)
        assert [one.state for one in pipeline.run(papers)] == [one.state for one in summaries]
        assert len(server.requests) == sent
    entries = PaperStore(tmp_path).ledger.entries()
    assert 0 < sum(entry.usd or 0.0 for entry in entries) <= 0.50
    states = [one.state for one in summaries]
    assert "passed" in states
    assert "failed" in states
    for one in summaries:
        if one.state == "failed":
            assert [finding.kind for finding in one.findings] == [FindingClass.BUDGET]


def _code(change: Callable[[Reply], Reply]) -> Callable[[str, dict[str, Any]], Response]:
    def respond(model: str, body: dict[str, Any]) -> Response:
        reply = world.respond(model, body)
        assert isinstance(reply, Reply)
        return change(reply) if body["requestMetadata"]["role"] == "generate" else reply

    return respond


def _cut(reply: Reply) -> Reply:
    # Valid JSON with complete code, so that only the reason of the end says that it is cut.
    return Reply(text=reply.text, stop_reason="max_tokens")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (_cut, FindingClass.TRUNCATED),
        (lambda r: Reply(text=r.text, stop_reason="guardrail_intervened"), FindingClass.GUARDRAIL),
        (lambda r: Reply(text=r.text[:300], stop_reason="end_turn"), FindingClass.MALFORMED),
        (
            lambda _: Reply(
                text='{"source": "", "bindings": [], "declined": "It is unclear."}',
                stop_reason="end_turn",
            ),
            FindingClass.DECLINED,
        ),
    ],
)
def test_an_incomplete_reply_is_never_run(
    tmp_path: Path, change: Callable[[Reply], Reply], kind: FindingClass
) -> None:
    papers = world.some_papers(tmp_path, 1)
    runner = FakeRunner()
    with world.served(_code(change)) as (_, provider):
        (one,) = world.pipeline(tmp_path, provider, tmp_path / "papers", papers, runner=runner).run(
            papers
        )
    assert runner.runs == 0
    assert [finding.kind for finding in one.findings] == [kind]
    assert (
        one.stages[list(PipelineStage).index(PipelineStage.EAGER)].outcome is StageOutcome.NOT_RUN
    )
    assert list((tmp_path / "papers").rglob("*.py")) == []


@pytest.mark.parametrize("text", ["", "{}", '{"approved": true}', "approved"])
def test_a_review_that_is_not_valid_approves_nothing(tmp_path: Path, text: str) -> None:
    def respond(model: str, body: dict[str, Any]) -> Response:
        if body["requestMetadata"]["role"] == "review":
            return Reply(text=text, stop_reason="end_turn")
        return world.respond(model, body)

    papers = world.some_papers(tmp_path, 1)
    runner = FakeRunner()
    with world.served(respond) as (_, provider):
        (one,) = world.pipeline(tmp_path, provider, tmp_path / "papers", papers, runner=runner).run(
            papers
        )
    assert runner.runs == 0
    assert one.state == "failed"
    assert one.findings[0].stage is PipelineStage.REVIEW


def test_a_model_that_does_not_exist_is_said_in_one_line(tmp_path: Path) -> None:
    def respond(model: str, body: dict[str, Any]) -> Response:
        return ErrorResponse(status=404, code="ResourceNotFoundException", message="no such model")

    papers = world.some_papers(tmp_path, 1)
    with world.served(respond) as (server, provider):
        with pytest.raises(ProviderError, match="papers preflight") as error:
            world.pipeline(tmp_path, provider, tmp_path / "papers", papers).run(papers)
        assert len(server.requests) == 1
    assert "\n" not in str(error.value)
    assert error.value.exit_status == 2
    (entry,) = PaperStore(tmp_path).ledger.entries()
    assert (entry.state, entry.error_code) == (CallState.FAILED, "ResourceNotFoundException")


def test_no_prompt_contains_binary_data(tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    noise = "A text. Gates \ufffd\x00\x07 %PDF-1.7 and %PD%PDF-F-1.4 weigh \ud800 branches. "
    (folder / "noisy.txt").write_bytes(
        noise.encode("utf-8", "surrogatepass").replace(b"\0", b"") * 20
    )
    papers = world.papers_of(folder, tmp_path, 1)
    with world.served() as (server, provider):
        world.pipeline(tmp_path, provider, folder, papers).run(papers)
        texts = [str(body["messages"]) + str(body["system"]) for body in server.requests]
    assert texts
    assert not [text for text in texts if "%PDF-" in text or "\ufffd" in text]


def test_without_a_sandbox_nothing_runs_and_nothing_is_passed(tmp_path: Path) -> None:
    class Unconfined(FakeRunner):
        def check(self) -> None:
            raise SandboxError("bubblewrap is missing: apt-get install bubblewrap")

    papers = world.some_papers(tmp_path, 1)
    runner = Unconfined()
    sweeper, executor = map(FakeChecker, (PipelineStage.SWEEP, PipelineStage.EXECUTE))
    with world.served() as (server, provider):
        (one,) = world.pipeline(
            tmp_path,
            provider,
            tmp_path / "papers",
            papers,
            runner=runner,
            sweeper=sweeper,
            trainer=executor,
        ).run(papers)
        assert (runner.runs, sweeper.runs, executor.runs) == (0, 0, 0)
        assert (one.state, one.findings) == ("incomplete", ())
        outcomes = {stage.stage: stage for stage in one.stages}
        for stage in (
            PipelineStage.EAGER,
            PipelineStage.FAITHFUL,
            PipelineStage.SWEEP,
            PipelineStage.EXECUTE,
        ):
            assert outcomes[stage].outcome is StageOutcome.NOT_RUN
            assert "bubblewrap" in outcomes[stage].detail
        # Once the machine can confine code, the run continues without a request.
        sent = len(server.requests)
        (again,) = world.pipeline(tmp_path, provider, tmp_path / "papers", papers).run(papers)
        assert (again.state, len(server.requests)) == ("passed", sent)
