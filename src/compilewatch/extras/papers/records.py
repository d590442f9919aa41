"""Research papers, the code that a language model writes for them, and what became of it.

The pipeline has stages; each stage of a paper ends as one `StageResult`. *Not run* is an outcome of
its own and never counts as passed.
"""

from enum import StrEnum
from typing import Any

from compilewatch.records import SCHEMA_VERSION, Record


class PipelineStage(StrEnum):
    """The stages of a paper, in order."""

    FIND = "find"
    READ = "read"
    PLAN = "plan"
    GENERATE = "generate"
    STATIC = "static"
    REVIEW = "review"
    EAGER = "eager"
    FAITHFUL = "faithful"
    SWEEP = "sweep"
    EXECUTE = "execute"


class StageOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


class FindingClass(StrEnum):
    """What is wrong with a paper, its code, or the run; `PaperFinding.stage` says where.

    `unreadable`: the paper has no text. `declined`, `guardrail`, `truncated`, `malformed`: the
    model's reply is no code. `budget`, `unavailable`: there is no reply.
    `invalid_code`: the code does not parse or lacks a function. `disallowed`: it does what
    generated code may not do. `not_approved`: the review found a serious fault, or there is no
    valid review. `wrong_in_eager`: the code fails without a compiler. `unfaithful`: it does not
    contain the paper's contribution. `graph_break`, `compiler_cannot`, `mismatch`: a compiler's
    verdict. The others say how a process ended.
    """

    UNREADABLE = "unreadable"
    DECLINED = "declined"
    GUARDRAIL = "guardrail"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    BUDGET = "budget"
    UNAVAILABLE = "unavailable"
    INVALID_CODE = "invalid_code"
    DISALLOWED = "disallowed"
    NOT_APPROVED = "not_approved"
    WRONG_IN_EAGER = "wrong_in_eager"
    UNFAITHFUL = "unfaithful"
    GRAPH_BREAK = "graph_break"
    COMPILER_CANNOT = "compiler_cannot"
    MISMATCH = "mismatch"
    TIMED_OUT = "timed_out"
    OOM = "oom"
    CRASHED = "crashed"
    LOST = "lost"


TRANSIENT = frozenset(
    {FindingClass.BUDGET, FindingClass.UNAVAILABLE, FindingClass.TIMED_OUT}
    | {FindingClass.OOM, FindingClass.CRASHED, FindingClass.LOST}
)
"""Classes after which a later run tries the stage again."""

REPAIRABLE = frozenset(
    {FindingClass.INVALID_CODE, FindingClass.DISALLOWED, FindingClass.NOT_APPROVED}
    | {FindingClass.WRONG_IN_EAGER, FindingClass.UNFAITHFUL, FindingClass.GRAPH_BREAK}
    | {FindingClass.COMPILER_CANNOT, FindingClass.MISMATCH}
)
"""Classes that are sent back to the model, with the evidence, for a repair."""


class Paper(Record, frozen=True, kw_only=True):
    """A paper as a library describes it. `location` is a path or an `s3://` address.

    `date` is RFC 3339, or empty if the library does not know it.
    """

    id: str
    title: str
    library: str
    location: str
    authors: tuple[str, ...] = ()
    date: str = ""


class PlanSymbol(Record, frozen=True, kw_only=True):
    name: str
    meaning: str
    shape: str = ""


class Claim(Record, frozen=True, kw_only=True):
    """One thing that the paper contributes, in a form that code can be checked against.

    `operations` are names of `papers.checks.OPERATIONS` that an implementation must contain.
    `formula` is an expression over `symbols` whose value the part of the model computes, or empty.
    """

    id: str
    statement: str
    operations: tuple[str, ...]
    symbols: tuple[str, ...] = ()
    formula: str = ""


class PaperPlan(Record, frozen=True, kw_only=True):
    """What is to be written, before it is written."""

    contribution: str
    claims: tuple[Claim, ...]
    symbols: tuple[PlanSymbol, ...] = ()
    input_shapes: tuple[str, ...] = ()
    dataset: str = ""
    unclear: tuple[str, ...] = ()


class BoundInput(Record, frozen=True, kw_only=True):
    symbol: str
    shape: tuple[int, ...]


class BoundAttribute(Record, frozen=True, kw_only=True):
    symbol: str
    attribute: str


class Binding(Record, frozen=True, kw_only=True):
    """Where the code computes the formula of a claim.

    `module` is the path of a submodule of `model()`; `inputs` are its positional arguments, in
    order. Lists, because the schema of a reply cannot have mappings.
    """

    claim: str
    module: str
    inputs: tuple[BoundInput, ...]
    attributes: tuple[BoundAttribute, ...]


class CodeVersion(Record, frozen=True, kw_only=True):
    """One version of the code for a paper. `id` is the SHA-256 of its source.

    `parent` is the version that this one repairs; `number` counts from 0. `scripted` versions come
    from prepared replies and say nothing about a model.
    """

    id: str
    paper: str
    source: str
    number: int
    model: str
    call: str
    prompt_sha256: str
    rules_sha256: str
    paper_sha256: str
    parent: str | None = None
    bindings: tuple[Binding, ...] = ()
    scripted: bool = False


class Evidence(Record, frozen=True, kw_only=True):
    line: int
    quote: str


class ReviewedClaim(Record, frozen=True, kw_only=True):
    claim: str
    present: bool
    evidence: tuple[Evidence, ...] = ()


class ReviewIssue(Record, frozen=True, kw_only=True):
    """`severity` is `serious` or `minor`; serious issues prevent the approval."""

    severity: str
    statement: str
    line: int | None = None


class Review(Record, frozen=True, kw_only=True):
    approved: bool
    claims: tuple[ReviewedClaim, ...]
    issues: tuple[ReviewIssue, ...] = ()


class PaperFinding(Record, frozen=True, kw_only=True):
    """One thing that is wrong. `evidence` is one line for users; `line` is a line of the code."""

    kind: FindingClass
    stage: PipelineStage
    evidence: str
    line: int | None = None

    @property
    def text(self) -> str:
        """The finding in one line."""
        line = f" (line {self.line})" if self.line else ""
        return f"{self.kind}: {self.evidence}{line}"


MAX_EVIDENCE = 400


def one_line(text: str) -> str:
    """Foreign text for people: one line, without control characters, not too long."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:MAX_EVIDENCE]


def finding_of(
    kind: FindingClass, stage: PipelineStage, evidence: str, line: int | None = None
) -> PaperFinding:
    """A finding whose evidence may be foreign text."""
    return PaperFinding(kind=kind, stage=stage, evidence=one_line(evidence), line=line)


class FoundError(Exception):
    """A stage of a paper cannot go on: `finding` says why."""

    def __init__(self, kind: FindingClass, stage: PipelineStage, evidence: str) -> None:
        super().__init__(evidence)
        self.finding = finding_of(kind, stage, evidence)


class StageResult(Record, frozen=True, kw_only=True):
    """The end of one stage of one paper: a line of the paper's journal.

    `key` digests everything that can change the outcome, so that a stage with a lasting result is
    not repeated. `generation` is the version of the code that it is about. `detail` is one line;
    for `not_run` it says why. `files` are relative to the paper's folder. `numbers` are measured.
    The journal sets `paper`, `key`, `at`, `generation`, and the outcome `failed` if there are
    findings.
    """

    paper: str = ""
    stage: PipelineStage
    key: str = ""
    outcome: StageOutcome = StageOutcome.PASSED
    at: str = ""
    generation: str | None = None
    detail: str = ""
    findings: tuple[PaperFinding, ...] = ()
    files: tuple[str, ...] = ()
    numbers: dict[str, float] = {}
    labels: dict[str, str] = {}
    scripted: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def is_lasting(self) -> bool:
        """Whether a later run with the same key takes this result over."""
        if self.outcome is StageOutcome.NOT_RUN:
            return False
        return not any(finding.kind in TRANSIENT for finding in self.findings)

    @property
    def not_run(self) -> str:
        """Why the stage was not run; empty if it was."""
        return self.detail if self.outcome is StageOutcome.NOT_RUN else ""


def not_run(stage: PipelineStage, why: str) -> StageResult:
    """A stage that was not run."""
    return StageResult(stage=stage, outcome=StageOutcome.NOT_RUN, detail=why)


class CallState(StrEnum):
    """`started`: the request may have been sent and paid for. The others end an entry."""

    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"


class ModelCall(Record, frozen=True, kw_only=True):
    """A line of the ledger: each HTTP request is a line `started` and a line that ends it.

    `entry` counts requests from 1 and joins the two lines. `usd` is the cost, None if the price is
    unknown; of a line `started`, `usd` and the tokens are the most that the request can use.
    `reply` is the text of a finished call, so that what was paid for is never lost. `stop_reason`
    is Bedrock's; `end_turn` is a complete reply.
    """

    entry: int = 0
    key: str = ""
    state: CallState = CallState.FINISHED
    paper: str = ""
    role: str = ""
    provider: str = ""
    model: str = ""
    at: str = ""
    usd: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    request_id: str = ""
    stop_reason: str = ""
    error_code: str = ""
    reply: str = ""
    scripted: bool = False
    schema_version: int = SCHEMA_VERSION


class PaperSummary(Record, frozen=True, kw_only=True):
    """What became of one paper: the last result of each stage, in the order of the stages.

    `state` is `passed` (every stage), `failed`, or `incomplete` (a stage was not run). `spent` are
    sums over the ledger: `requests`, `finished`, `unfinished` (which count with the most that they
    can use), `usd`, `unpriced`, `input_tokens` and `output_tokens`. `repaired` are the findings in
    earlier versions of the code, which a repair was to remove.
    """

    paper: str
    title: str
    state: str
    stages: tuple[StageResult, ...]
    findings: tuple[PaperFinding, ...]
    generation: str | None
    repairs: int
    spent: dict[str, Any]
    scripted: bool
    model: str = ""
    dataset: str = ""
    repaired: tuple[PaperFinding, ...] = ()
