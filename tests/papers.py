"""Papers, prepared replies and a pipeline without torch, for tests of the papers workflow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from compilewatch.extras.executor.sandbox.policy import SandboxEnding, SandboxLimits, SandboxResult
from compilewatch.extras.papers import PaperQuery, Reply
from compilewatch.extras.papers.calls import Budget, Caller, ModelPrice, load_rules
from compilewatch.extras.papers.execution import SandboxRunner
from compilewatch.extras.papers.libraries import FolderLibrary
from compilewatch.extras.papers.pipeline import Observer, Pipeline
from compilewatch.extras.papers.providers import BedrockProvider, ConverseServer, Response, _reply
from compilewatch.extras.papers.records import CodeVersion, Paper, PipelineStage, StageResult
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.store import PaperFolder, PaperStore

INPUTS = Path(__file__).parents[1] / "inputs" / "papers"
REPLIES = INPUTS / "replies"
PRICE = ModelPrice(
    model="tested",
    input_usd=3.0,
    output_usd=15.0,
    date=__import__("datetime").date(2026, 1, 1),
    source="a test",
)


def version(source: str = "", paper: str = "planted", **fields: Any) -> CodeVersion:
    """A version of the code of a paper."""
    known: dict[str, Any] = {"id": "a" * 64, "number": 0, "model": "tested", "call": ""}
    known |= dict.fromkeys(("prompt_sha256", "rules_sha256", "paper_sha256"), "")
    return CodeVersion(paper=paper, source=source, **(known | fields))


class FakeRunner(SandboxRunner):
    """Says that generated code ran and that its formulas hold; runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def check(self) -> None:
        pass

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        self.runs += 1
        formulas = msgspec.json.decode(files["request.json"]).get("formulas", ())
        state = {
            "phase": "done",
            "parameters": 7,
            "checks": [{"claim": claim, "ok": True} for claim in formulas],
        }
        files_returned = {"result.json": msgspec.json.encode(state)}
        return SandboxResult(ending=SandboxEnding.EXITED, exit_code=0, files=files_returned)


class FakeChecker:
    """A sweep or execution that passes."""

    identity = "fake"

    def __init__(self, stage: PipelineStage) -> None:
        self.stage = stage
        self.runs = 0

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageResult:
        self.runs += 1
        return StageResult(stage=self.stage, detail="passed", numbers={"training_loss": 1.0})


def write_papers(folder: Path, count: int) -> None:
    """Papers of some hundred characters each, which differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = f"# Gates of kind {number}\n\n" + f"A gate of kind {number} weighs a branch. " * 12
        (folder / f"paper-{number:02}.md").write_text(text)


def reply(role: str, number: int = 0, paper: str = "gated-residual", tokens: int = 500) -> Reply:
    """A prepared reply of one of the shipped papers."""
    text = _reply(REPLIES / paper, role, number)
    assert text is not None
    return Reply(text=text, stop_reason="end_turn", input_tokens=tokens, output_tokens=tokens)


def respond(model: str, body: dict[str, Any]) -> Response:
    """Reply to every request as if it were about the paper gated-residual."""
    labels = body["requestMetadata"]
    return reply(labels["role"], int(labels["number"]))


@contextmanager
def served(
    respond: Callable[[str, dict[str, Any]], Response] = respond, *, read_timeout: float = 5.0
) -> Iterator[tuple[ConverseServer, BedrockProvider]]:
    """A server with the wire format of Bedrock, and the real client of it."""
    server = ConverseServer(respond)
    provider = BedrockProvider(
        "tested",
        region="us-east-1",
        endpoint_url=server.url,
        credentials=("a", "b"),
        read_timeout_seconds=read_timeout,
    )
    yield server, provider
    provider.close()
    server.close()


def library(folder: Path, cache: Path) -> FolderLibrary:
    return FolderLibrary(PapersSettings(folder=str(folder)), cache=cache)


def papers_of(folder: Path, cache: Path, count: int) -> tuple[Paper, ...]:
    return library(folder, cache).find(PaperQuery(max_papers=count))


def some_papers(tmp_path: Path, count: int) -> tuple[Paper, ...]:
    """So many papers in the folder `papers`, as a library finds them."""
    write_papers(tmp_path / "papers", count)
    return papers_of(tmp_path / "papers", tmp_path, count)


_RUNS = itertools.count()


def pipeline(
    outputs: Path,
    provider: Any,
    folder: Path,
    papers: tuple[Paper, ...],
    *,
    budget: Budget = Budget(),  # noqa: B008  (it is immutable)
    observer: Observer = lambda _: None,
    runner: Any = None,
    sweeper: Any = None,
    trainer: Any = None,
) -> Pipeline:
    """A pipeline whose parts that run code are fakes."""
    store = PaperStore(outputs)
    caller = Caller(
        ledger=store.ledger,
        provider=provider,
        rules=load_rules(),
        price=PRICE,
        budget=budget,
        papers=frozenset(paper.id for paper in papers),
        run=f"run {next(_RUNS)}",
        sleep=lambda _: None,
    )
    return Pipeline(
        store=store,
        library=library(folder, outputs / "cache"),
        caller=caller,
        runner=runner or FakeRunner(),
        sweeper=sweeper or cast(Any, FakeChecker(PipelineStage.SWEEP)),
        trainer=trainer or cast(Any, FakeChecker(PipelineStage.EXECUTE)),
        max_paper_tokens=10_000,
        observer=observer,
    )
