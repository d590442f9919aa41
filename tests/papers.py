"""Papers, prepared replies and a pipeline without torch, for tests of the papers workflow."""

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from compilewatch.config import PapersSettings
from compilewatch.extras.executor.sandbox.policy import SandboxEnding, SandboxLimits, SandboxResult
from compilewatch.extras.papers import Prompt, Role
from compilewatch.extras.papers import records as kinds
from compilewatch.extras.papers.calls import Caller, ModelPrice, load_rules
from compilewatch.extras.papers.execution import SandboxRunner
from compilewatch.extras.papers.libraries import FolderLibrary, PaperQuery
from compilewatch.extras.papers.pipeline import Observer, Pipeline
from compilewatch.extras.papers.providers import BedrockProvider, ScriptedProvider
from compilewatch.extras.papers.records import CodeVersion, ModelCall, PipelineStage, StageResult
from compilewatch.extras.papers.store import PaperFolder, PaperStore
from tests.serving import JsonHandler, serving

INPUTS = Path(__file__).parents[1] / "inputs" / "papers"
REPLIES = INPUTS / "replies"
DAY = datetime.date(2026, 1, 1)
PRICE = ModelPrice(model="tested", input_usd=3.0, output_usd=15.0, date=DAY, source="a test")


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
        checks = [{"claim": claim, "ok": True} for claim in formulas]
        state = {"phase": "done", "numbers": {"parameters": 7}}
        written = {"result.json": state, "checks.json": checks}
        returned = {name: msgspec.json.encode(value) for name, value in written.items()}
        return SandboxResult(ending=SandboxEnding.EXITED, exit_code=0, files=returned)


class FakeChecker:
    """A sweep or execution that passes."""

    identity = "fake"

    def __init__(self, stage: PipelineStage) -> None:
        self.stage = stage
        self.runs = 0

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageResult:
        self.runs += 1
        return StageResult(stage=self.stage, detail="passed", numbers={"training_loss": 1.0})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An error response; without a status, the connection ends after `seconds` and without one."""

    status: int = 0
    code: str = ""
    message: str = ""
    seconds: float = 0.0


Response = ModelCall | Fault
NO_MODEL = Fault(status=404, code="ResourceNotFoundException", message="no such model")


def reply(
    role: str, number: int = 0, paper: str = "gated-residual", tokens: int = 500
) -> ModelCall:
    """A prepared reply of one of the shipped papers."""
    labels = {"paper": paper, "role": role, "number": str(number)}
    prompt = Prompt(role=Role(system="", schema={}, max_tokens=1), text="", labels=labels)
    prepared = ScriptedProvider(REPLIES).converse(prompt)
    return msgspec.structs.replace(prepared, input_tokens=tokens, output_tokens=tokens)


def respond(body: dict[str, Any]) -> Response:
    """Reply to every request as if it were about the paper gated-residual."""
    labels = body["requestMetadata"]
    return reply(labels["role"], int(labels["number"]))


def _body_of(reply: ModelCall) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": reply.reply}]}},
        "stopReason": reply.stop_reason,
        "usage": {"inputTokens": reply.input_tokens, "outputTokens": reply.output_tokens},
        "metrics": {"latencyMs": 1},
    }


@contextlib.contextmanager
def served(
    respond: Callable[[dict[str, Any]], Response] = respond,
    *,
    models: Mapping[str, dict[str, Any]] = {},
    model: str = "tested",
    read_timeout: float = 5.0,
) -> Iterator[tuple[list[dict[str, Any]], BedrockProvider]]:
    """The requests to a server with the wire format of Bedrock, and the real client of it."""
    requests: list[dict[str, Any]] = []

    class Handler(JsonHandler):
        def do_POST(self) -> None:  # noqa: N802
            body = self.body()
            requests.append(body)
            response = respond(body)
            if isinstance(response, ModelCall):
                self.reply(200, _body_of(response))
            elif response.status:
                message = {"message": response.message}
                self.reply(response.status, message, x_amzn_ErrorType=response.code)
            else:
                threading.Event().wait(response.seconds)
                self.close_connection = True

        def do_GET(self) -> None:  # noqa: N802
            details = models.get(unquote(self.path.rpartition("/")[2]))
            if details is None:
                self.reply(404, {"message": "invalid"}, x_amzn_ErrorType=NO_MODEL.code)
            else:
                self.reply(200, {"modelDetails": details})

    with serving(Handler) as url:
        access: dict[str, Any] = {"region": "us-east-1", "credentials": ("a", "b")}
        provider = BedrockProvider(model, endpoint_url=url, read_timeout=read_timeout, **access)
        yield requests, provider
        provider.close()


def papers_of(folder: Path, count: int) -> tuple[kinds.Paper, ...]:
    return FolderLibrary(PapersSettings(folder=str(folder))).find(PaperQuery(), count)


def some_papers(tmp_path: Path, count: int) -> tuple[kinds.Paper, ...]:
    """So many papers of some hundred characters each, which differ, as a library finds them."""
    folder = tmp_path / "papers"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = f"# Gates of kind {number}\n\n" + f"A gate of kind {number} weighs a branch. " * 12
        (folder / f"paper-{number:02}.md").write_text(text)
    return papers_of(folder, count)


def pipeline(
    outputs: Path,
    provider: Any,
    papers: tuple[kinds.Paper, ...],
    *,
    limits: Mapping[str, float] = {},
    observer: Observer = lambda _: None,
    runner: Any = None,
    sweeper: Any = None,
    trainer: Any = None,
) -> Pipeline:
    """A pipeline whose parts that run code are fakes."""
    store = PaperStore(outputs)
    ids = (paper.id for paper in papers)
    checkers: tuple[Any, Any] = (
        sweeper or FakeChecker(PipelineStage.SWEEP),
        trainer or FakeChecker(PipelineStage.EXECUTE),
    )
    return Pipeline(
        store,
        FolderLibrary(PapersSettings(folder=str(outputs))),
        Caller(store.ledger, provider, load_rules(), PRICE, limits, ids, sleep=lambda _: None),
        runner or FakeRunner(),
        *checkers,
        max_paper_tokens=10_000,
        observer=observer,
    )


def processed(
    outputs: Path,
    papers: tuple[kinds.Paper, ...],
    respond: Callable[[dict[str, Any]], Response] = respond,
    *,
    jobs: int = 1,
    **options: Any,
) -> tuple[tuple[kinds.PaperSummary, ...], list[dict[str, Any]]]:
    """What became of papers, and the requests to the model."""
    with served(respond) as (requests, provider):
        return pipeline(outputs, provider, papers, **options).run(papers, jobs), requests
