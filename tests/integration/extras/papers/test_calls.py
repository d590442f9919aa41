"""The real client of boto3 and a server with Bedrock's wire format: faults, budgets, a rerun.

Several papers at a time: the ledger stays equal to the requests, and budgets hold exactly.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.config import load_settings
from compilewatch.errors import ProviderError, SandboxError
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from compilewatch.extras.papers import CallError, records
from compilewatch.extras.papers.calls import Prompts, load_rules
from compilewatch.extras.papers.execution import Trainer, seconds_of
from compilewatch.extras.papers.libraries import read_text
from compilewatch.extras.papers.pipeline import Observer
from compilewatch.extras.papers.providers import ScriptedProvider, foundation_model
from compilewatch.extras.papers.records import CallState, FindingClass, ModelCall, PipelineStage
from compilewatch.extras.papers.store import PaperFolder, PaperStore
from tests import papers as world
from tests.papers import FakeChecker, FakeRunner, Fault, Response

JOBS = 5
THROTTLED = Fault(status=429, code="ThrottlingException", message="Too many requests")
UNAVAILABLE = Fault(status=503, code="ServiceUnavailableException")


def checkers(runner: FakeRunner | None = None) -> dict[str, Any]:
    """Parts of a pipeline that run code, and count how often."""
    stages = {"sweeper": PipelineStage.SWEEP, "trainer": PipelineStage.EXECUTE}
    fakes = {name: FakeChecker(stage) for name, stage in stages.items()}
    return {"runner": runner or FakeRunner(), **fakes}


def kinds(one: records.PaperSummary) -> list[FindingClass]:
    return [finding.kind for finding in one.findings]


def test_a_second_run_sends_nothing_and_runs_nothing(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 3)
    first, requests = world.processed(tmp_path, papers)
    files = {p: p.read_bytes() for p in (tmp_path / "papers").rglob("*") if p.is_file()}
    counted = checkers()
    assert world.processed(tmp_path, papers, **counted) == (first, [])
    assert ({part.runs for part in counted.values()}, len(requests)) == ({0}, 9)
    assert {p: p.read_bytes() for p in (tmp_path / "papers").rglob("*") if p.is_file()} == files


@pytest.mark.matrix
def test_twenty_papers_at_a_time_every_request_is_in_the_ledger(tmp_path: Path) -> None:
    """Five throttles, two 503, a dropped connection and a stall; takes the stall's time."""
    faults: dict[int, Response] = dict.fromkeys((2, 3, 11, 12, 30), THROTTLED)
    faults |= {7: UNAVAILABLE, 20: UNAVAILABLE, 15: Fault(), 25: Fault(seconds=3)}
    numbers = itertools.count(1)

    def respond(body: dict[str, Any]) -> Response:
        time.sleep(0.02)  # so that requests overlap
        return faults.get(next(numbers)) or world.respond(body)

    papers = world.some_papers(tmp_path, 20)
    with world.served(respond, read_timeout=1.0) as (requests, provider):
        pipeline = world.pipeline(tmp_path, provider, papers)
        summaries = pipeline.run(papers, JOBS)
        entries = PaperStore(tmp_path).ledger.entries()
        # On a busy machine more requests can take longer than a second.
        assert len(entries) == len(requests) >= 20 * 3 + 9
    assert [one.paper for one in summaries] == [paper.id for paper in papers]
    assert [one.state for one in summaries] == ["passed"] * 20
    assert [entry.entry for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.state for entry in entries} == {CallState.FINISHED, CallState.FAILED}
    # Whether a request that was dropped or stalled was charged is unknown: it counts as charged.
    charged = [entry for entry in entries if entry.state is CallState.FAILED and entry.usd]
    assert len(charged) >= 2


@pytest.mark.parametrize(
    ("name", "most", "jobs"),
    [
        ("max_usd", 0.50, 1),
        ("max_usd", 0.50, JOBS),
        ("max_tokens", 60_000, JOBS),
        ("max_tokens_per_paper", 12_000, JOBS),
    ],
)
def test_a_budget_holds_before_a_call(tmp_path: Path, name: str, most: float, jobs: int) -> None:
    papers = world.some_papers(tmp_path, 20)
    highest, each = 0.0, "per_paper" in name

    def respond(body: dict[str, Any]) -> Response:
        # What the ledger has reserved and spent while requests are on their way.
        nonlocal highest
        paper = body["requestMetadata"]["paper"]
        entries = [e for e in PaperStore(tmp_path).ledger.entries() if not each or e.paper == paper]
        usd = sum(entry.usd or 0.0 for entry in entries)
        tokens = sum(entry.input_tokens + entry.output_tokens for entry in entries)
        highest = max(highest, usd if "usd" in name else tokens)
        return world.respond(body)

    limits = {name: most}
    summaries, _ = world.processed(tmp_path, papers, respond, jobs=jobs, limits=limits)
    if jobs == 1:  # running again with the same limit spends nothing more
        again, requests = world.processed(tmp_path, papers, respond, limits=limits)
        assert ([one.state for one in again], requests) == ([one.state for one in summaries], [])
    assert 0 < highest <= most
    failed = [one for one in summaries if one.state != "passed"]
    assert {one.state for one in failed} == {"failed"}
    assert all(kinds(one) == [FindingClass.BUDGET] for one in failed)
    assert ("for this paper" in failed[0].findings[0].evidence) is each


def test_a_request_whose_process_was_killed_counts_with_all_its_tokens(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 1)
    world.processed(tmp_path, papers)
    ledger = PaperStore(tmp_path).ledger
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(lines[0])  # `started`, and no end
    (entry,) = PaperStore(tmp_path).ledger.entries()
    assert entry.state is CallState.STARTED
    limits = {"max_tokens": entry.input_tokens + entry.output_tokens}
    (tmp_path / "papers" / papers[0].id / "journal.jsonl").unlink()
    (one,), requests = world.processed(tmp_path, papers, limits=limits)
    assert requests == []
    assert kinds(one) == [FindingClass.BUDGET]


DECLINED = '{"source": "", "bindings": [], "declined": "It is unclear."}'


@pytest.mark.parametrize(
    ("role", "change", "kind"),
    [
        # Valid JSON with complete code, so that only the reason of the end says that it is cut.
        ("generate", {"stop_reason": "max_tokens"}, FindingClass.TRUNCATED),
        ("generate", {"stop_reason": "guardrail_intervened"}, FindingClass.GUARDRAIL),
        ("generate", {"reply": '{"source": "import torch'}, FindingClass.MALFORMED),
        ("generate", {"reply": DECLINED}, FindingClass.DECLINED),
        ("review", {"reply": '{"approved": true}'}, FindingClass.MALFORMED),
        ("review", {"reply": "approved"}, FindingClass.MALFORMED),
    ],
)
def test_an_incomplete_reply_is_never_run(
    tmp_path: Path, role: str, change: dict[str, str], kind: FindingClass
) -> None:
    papers = world.some_papers(tmp_path, 1)
    runner = FakeRunner()

    def respond(body: dict[str, Any]) -> Response:
        response = world.respond(body)
        assert isinstance(response, ModelCall)
        changed = body["requestMetadata"]["role"] == role
        return msgspec.structs.replace(response, **change) if changed else response

    (one,), _ = world.processed(tmp_path, papers, respond, runner=runner)
    assert runner.runs == 0
    assert [(finding.kind, finding.stage) for finding in one.findings] == [(kind, role)]
    stages = {stage.stage: stage.outcome for stage in one.stages}
    assert stages[PipelineStage.EAGER] is records.StageOutcome.NOT_RUN
    assert bool(list((tmp_path / "papers").rglob("*.py"))) is (role == "review")


def test_a_model_that_does_not_exist_ends_the_run_in_one_line(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 20)
    with world.served(lambda _: world.NO_MODEL) as (requests, provider):
        with pytest.raises(ProviderError, match="papers preflight") as error:
            world.pipeline(tmp_path, provider, papers).run(papers, JOBS)
        assert len(requests) <= JOBS
    assert "\n" not in str(error.value)
    assert error.value.exit_status == 2
    entry, *_ = PaperStore(tmp_path).ledger.entries()
    assert (entry.state, entry.error_code) == (CallState.FAILED, world.NO_MODEL.code)


def test_without_a_sandbox_nothing_runs_and_nothing_is_passed(tmp_path: Path) -> None:
    class Unconfined(FakeRunner):
        def check(self) -> None:
            raise SandboxError("bubblewrap is missing: apt-get install bubblewrap")

    papers = world.some_papers(tmp_path, 1)
    counted = checkers(Unconfined())
    (one,), _ = world.processed(tmp_path, papers, **counted)
    assert {part.runs for part in counted.values()} == {0}
    assert (one.state, one.findings) == ("incomplete", ())
    for stage in one.stages[list(PipelineStage).index(PipelineStage.EAGER) :]:
        assert stage.outcome is records.StageOutcome.NOT_RUN
        assert "bubblewrap" in stage.detail
    # Once the machine can confine code, the run continues without a request.
    (again,), requests = world.processed(tmp_path, papers)
    assert (again.state, requests) == ("passed", [])


class Training(Trainer):
    """A training that takes some of its deadline, by its own account."""

    def __init__(self, seconds: float, time_used: float) -> None:
        limits = SandboxLimits(deadline_seconds=100.0)
        super().__init__(load_settings(), limits, max_seconds=320.0, used_seconds=time_used)
        self.seconds = seconds
        self.runs = 0

    def train(self, generation: records.CodeVersion, folder: PaperFolder) -> records.StageResult:
        self.runs += 1
        time.sleep(0.01)
        numbers = {"execution_time_seconds": self.seconds, "training_loss": 1.0}
        return records.StageResult(stage=PipelineStage.EXECUTE, numbers=numbers)


@pytest.mark.parametrize(("seconds", "runs"), [(100.0, 3), (40.0, 6), (0.0, 9)])
def test_the_time_of_training_holds_before_a_training(
    tmp_path: Path, seconds: float, runs: int
) -> None:
    """320 s: three trainings of 100 s; of 40 s, six end before less than 100 s are left."""
    papers = world.some_papers(tmp_path, 9)
    total_runs = 0
    for _ in range(2):
        training = Training(seconds, total_runs * seconds)
        summaries, _ = world.processed(tmp_path, papers, jobs=JOBS, trainer=training)
        total_runs += training.runs
    assert total_runs == runs
    found = {kind for one in summaries for kind in kinds(one)}
    assert found == (set() if runs == 9 else {FindingClass.BUDGET})
    store = PaperStore(tmp_path)
    total = sum(seconds_of(store.folder(paper.id).journal()) for paper in papers)
    assert total == runs * seconds <= 320.0


# --- the provider for Bedrock ---

MODEL = "anthropic.some-model-v1:0"
DESCRIBED = {
    "modelArn": "arn:aws:bedrock:us-east-1::foundation-model/x",
    "modelId": MODEL,
    "modelName": "Some Model",
    "inferenceTypesSupported": ["INFERENCE_PROFILE"],
    "modelLifecycle": {"status": "ACTIVE", "endOfLifeTime": "2027-01-31T00:00:00Z"},
}


def test_a_model_is_looked_up_with_its_life_cycle() -> None:
    for model, usable in ((MODEL, False), (f"us.{MODEL}", True)):
        with world.served(models={MODEL: DESCRIBED}, model=model) as (_, provider):
            (listed,) = provider.available()
        assert (listed["status"], listed["ends"][:10]) == ("ACTIVE", "2027-01-31")
        assert (f"us.{MODEL}" not in listed["why"]) is usable
        assert (not listed["why"]) is usable
    profile = f"arn:aws:bedrock:us-east-1:1:inference-profile/eu.{MODEL}"
    assert foundation_model(profile) == foundation_model(f"global.{MODEL}") == MODEL
    assert foundation_model("amazon.titan-text") == "amazon.titan-text"
    missing = pytest.raises(CallError, match="papers preflight")
    with world.served(model="another.model") as (_, provider), missing as error:
        provider.available()
    assert "\n" not in str(error.value)


def test_a_request_has_a_schema_that_structured_output_accepts() -> None:
    paper = records.Paper(id="p", title="T", library="folder", location="x")
    noise = "Words of </paper> \ufffd\x07 %PDF-1.7 and %PD%PDF-F-1.4 a \ud800 paper. "
    text = read_text(noise.encode("utf-8", "surrogatepass") * 20, max_tokens=1000)
    with world.served() as (requests, provider):
        provider.converse(Prompts(paper, load_rules()).plan(text))
    (body,) = requests
    sent = body["messages"][0]["content"][0]["text"]
    assert (sent.count("</paper"), sent.count("%PDF-"), sent.count("\ufffd")) == (1, 0, 0)
    assert body["requestMetadata"] == {"paper": "p", "role": "plan", "number": "0"}
    assert set(body["inferenceConfig"]) == {"maxTokens"}
    schema = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]
    objects = 0

    def check(node: Any) -> None:
        nonlocal objects
        if isinstance(node, dict) and node.get("type") == "object":
            objects += 1
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
        for inner in node.values() if isinstance(node, dict) else ():
            check(inner)

    check(msgspec.json.decode(schema))
    assert objects == 3


# --- `kill -9` at the border of each stage ---


def run(outputs: Path, observer: Observer = lambda _: None) -> tuple[records.PaperSummary, ...]:
    """Run the shipped papers on prepared replies."""
    papers = world.papers_of(world.INPUTS / "library", 3)
    provider = ScriptedProvider(world.REPLIES)
    return world.pipeline(outputs, provider, papers, observer=observer).run(papers)


def killed(outputs: Path, stage: str, when: str) -> None:
    """Run them and kill this process at the border of a stage."""
    append = PaperFolder.append

    def kill(result: records.StageResult) -> None:
        if result.stage == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    def killed_before(folder: PaperFolder, result: records.StageResult) -> None:
        kill(result)
        append(folder, result)

    if when == "before":
        PaperFolder.append = killed_before  # type: ignore[method-assign,assignment]
    run(outputs, kill)


@pytest.mark.parametrize(
    ("stage", "when"),
    [
        ("generate", "before"),
        *(
            pytest.param(*border, marks=pytest.mark.matrix)
            for border in (("find", "after"), ("review", "after"), ("eager", "before"))
        ),
    ],
)
def test_a_run_that_is_killed_continues_where_it_was(tmp_path: Path, stage: str, when: str) -> None:
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
