"""Runs generated code: in the sandbox of this machine, or as a job of an executor. Nowhere else.

Eager mode, the formulas and a brief training run scripts of `worker/`; the sweep evaluates requests
by `SandboxLauncher`, which the core uses for the source `papers`, too. Where there is no sandbox, a
stage is *not run*, with the reason.
"""

import contextlib
import functools
import math
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import msgspec
from msgspec import Meta

import compilewatch
from compilewatch import errors, records
from compilewatch.config import Places, Settings
from compilewatch.contract import messages
from compilewatch.environments import Environments, Interpreter, last_line, module_command
from compilewatch.extras.executor import protocol, sandbox
from compilewatch.extras.executor.sandbox import policy
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits, SandboxResult
from compilewatch.extras.papers import records as kinds
from compilewatch.extras.papers.records import CodeVersion, FindingClass, PipelineStage, not_run
from compilewatch.extras.papers.store import PROFILER_FOLDER, PaperFolder, PaperStore
from compilewatch.launchers import Completed, by_environment
from compilewatch.plan import place, plan, targets_of, worker_sha256
from compilewatch.records import Status, digest

Kind = TypeVar("Kind")

SCRIPT = "main.py"
SOURCE_MODULE = "generated.py"
"""The generated module inside of the sandbox."""

SOURCE_FILE = "source_file"
"""The field of a model's provenance that names the file with its code."""

RETURNED = "returned.json"
"""What submodules returned, which a second sandbox compares with the formulas."""

EAGER_LIMITS = SandboxLimits(
    deadline_seconds=120.0,
    memory_bytes=4 * 2**30,
    disk_bytes=64 * MIB,
    output_bytes=32 * MIB,
    log_bytes=MIB,
)

EAGER_NUMBERS = ("parameters", "eager_seconds", "loss")
"""What the script reports of a run in eager mode."""

OUT_OF_MEMORY = ("MemoryError", "DefaultCPUAllocator")
"""What Python and torch's allocator say when the limit of memory is reached."""

MEASURED = frozenset(
    {"execution_time_seconds", "execution_success", "peak_memory_mb", "estimated_cost_usd"}
)
"""Numbers of an execution that the code that ran cannot set."""


class SandboxRunner:
    """Runs `python main.py` beside some files, in the sandbox of this machine."""

    def __init__(self, python: str | None = None) -> None:
        self._python = python

    def check(self) -> None:
        """Raises SandboxError if code cannot be confined here, or has no torch there."""
        sandbox.check(self._python)
        _import_torch(self._python)

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        """Run it and wait for its end. Raises SandboxError; whatever the code does is a result."""
        command, threads = ["python", SCRIPT], {"OMP_NUM_THREADS": "2"}
        return sandbox.run(
            sandbox.planned(
                command, files=files, limits=limits, variables=threads, python=self._python
            )
        )


@functools.cache
def _import_torch(python: str | None) -> None:
    """Raises SandboxError unless torch can be imported inside: else each paper would be blamed."""
    command = ["python", "-c", "import torch"]
    result = sandbox.run(sandbox.planned(command, limits=EAGER_LIMITS, python=python))
    if result.succeeded:
        return
    message = last_line(result.stderr or result.detail.encode())
    raise errors.SandboxError(
        f"torch cannot be imported in the sandbox ({message}): the environment of "
        f"{python or sys.executable} is not visible there or is broken: run `make setup`"
    )


def _files(mode: str, generation: CodeVersion | None = None, **request: Any) -> dict[str, str]:
    """The script of the sandbox, its request, and the generated module, if it is to be there."""
    script = Path(__file__).with_name("worker") / "script.py"
    files = {
        SCRIPT: script.read_text(encoding="utf-8"),
        "request.json": msgspec.json.encode({"mode": mode, **request}).decode(),
    }
    return files | ({SOURCE_MODULE: generation.source} if generation is not None else {})


# --- eager mode and formulas ---


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    line: Annotated[int, Meta(ge=0, le=2**31)] | None = None


class _Check(msgspec.Struct, frozen=True):
    claim: str
    ok: bool = False
    why: str = ""


class _State(msgspec.Struct, frozen=True):
    """`out/result.json` of the mode `eager`, as untrusted data."""

    phase: str = ""
    numbers: dict[str, float] = {}
    error: _Error | None = None


def run_eager(
    runner: SandboxRunner,
    generation: CodeVersion,
    plan: kinds.PaperPlan,
    limits: SandboxLimits = EAGER_LIMITS,
) -> tuple[kinds.StageResult, kinds.StageResult]:
    """Run the code in eager mode; returns what eager mode and what the formulas showed."""
    formulas = {claim.id: claim.formula for claim in plan.claims if claim.formula}
    # Drawn for each run, so that no code can hold prepared results.
    asked: dict[str, Any] = {"seed": secrets.token_hex(8), "bindings": generation.bindings}
    eager_stage, formula_stage = PipelineStage.EAGER, PipelineStage.FAITHFUL
    try:
        runner.check()
        result = runner.run(_files("eager", generation, **asked), limits)
        state = _untrusted(result, "result.json", _State) or _State()
        numbers = {name: state.numbers[name] for name in EAGER_NUMBERS if name in state.numbers}
        numbers["seconds"] = result.duration_seconds
        if result.peak_memory_bytes is not None:
            numbers["peak_memory_bytes"] = float(result.peak_memory_bytes)
        count = numbers.get("parameters")
        eager = kinds.StageResult(
            stage=eager_stage,
            findings=tuple(_eager_findings(result, state)),
            numbers=numbers,
            detail=f"{count:,.0f} parameters" if count is not None else "",
        )
        if eager.findings or state.phase != "done":
            return eager, not_run(formula_stage, "the code does not run in eager mode")
        if not formulas:
            no_formula = "the plan gives no formula to compute"
            return eager, kinds.StageResult(stage=formula_stage, detail=no_formula)
        # The formulas are text of a model too, so they are computed in a sandbox of their own.
        returned = {RETURNED: result.files.get(RETURNED, b"")}
        files = _files("compare", **asked, formulas=formulas)
        compared = runner.run({**returned, **files}, limits)
        return eager, kinds.StageResult(
            stage=formula_stage,
            findings=tuple(_formula_findings(compared, formulas)),
            numbers={"formulas": float(len(formulas))},
            detail=f"formulas computed apart from the code: {len(formulas)}",
        )
    except errors.SandboxError as error:
        return not_run(eager_stage, str(error)), not_run(formula_stage, str(error))


def _untrusted(result: SandboxResult, name: str, kind: type[Kind]) -> Kind | None:
    """A file that code left in its sandbox, decoded as a type; None if it is none of that type."""
    try:
        return msgspec.json.decode(result.files.get(name, b""), type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _eager_findings(result: SandboxResult, state: _State) -> Iterator[kinds.PaperFinding]:
    stage = PipelineStage.EAGER
    if (ending := ending_of(result, result.stderr, stage)) is not None:
        where = f" in {state.phase}" if state.phase else ""
        yield msgspec.structs.replace(ending, evidence=kinds.one_line(ending.evidence + where))
    elif state.error is not None:
        kind = FindingClass.WRONG_IN_EAGER
        if any(sign in state.error.message for sign in OUT_OF_MEMORY):
            kind = FindingClass.OOM
        yield kinds.finding_of(
            kind, stage, f"{state.phase}: {state.error.message}", state.error.line
        )
    elif state.phase != "done" or result.exit_code != 0:
        evidence = f"it ended with status {result.exit_code}: {last_line(result.stderr)}"
        yield kinds.finding_of(FindingClass.CRASHED, stage, evidence)


def _formula_findings(
    result: SandboxResult, formulas: Mapping[str, str]
) -> Iterator[kinds.PaperFinding]:
    """Each formula needs a check that holds; what was not compared does not count as held."""
    read = _untrusted(result, "checks.json", tuple[_Check, ...]) if result.succeeded else None
    checks = read or ()
    ended = "it was not compared" if result.succeeded else f"not compared: {result.ending}"
    for claim in formulas:
        of_claim = [check for check in checks if check.claim == claim]
        if not of_claim or not all(check.ok for check in of_claim):
            why = next((check.why for check in of_claim if not check.ok), ended)
            evidence = f"claim {claim}: {why}"
            yield kinds.finding_of(FindingClass.UNFAITHFUL, PipelineStage.FAITHFUL, evidence)


def ending_of(
    outcome: policy.SandboxOutcome, stderr: bytes, stage: PipelineStage
) -> kinds.PaperFinding | None:
    """The finding of a run that did not end by itself."""
    classes = {
        policy.SandboxEnding.DEADLINE: FindingClass.TIMED_OUT,
        policy.SandboxEnding.MEMORY: FindingClass.OOM,
        policy.SandboxEnding.DISK_FILES: FindingClass.CRASHED,
    }
    if outcome.ending is not policy.SandboxEnding.EXITED:
        kind = classes.get(outcome.ending, FindingClass.LOST)
        return kinds.finding_of(kind, stage, outcome.detail or outcome.ending.value)
    if any(sign.encode() in stderr[-4000:] for sign in OUT_OF_MEMORY):
        return kinds.finding_of(FindingClass.OOM, stage, last_line(stderr))
    if outcome.signal is not None:
        return kinds.finding_of(FindingClass.CRASHED, stage, f"it ended by signal {outcome.signal}")
    return None


# --- training ---

WAIT_SECONDS = 1800.0
"""How long a job may wait in the executor's queue, beside the time that it runs."""


def seconds_of(results: Iterable[kinds.StageResult]) -> float:
    """The time of all trainings in a journal."""
    executed = (result for result in results if result.stage is PipelineStage.EXECUTE)
    return sum(result.numbers.get("execution_time_seconds", 0.0) for result in executed)


class Trainer:
    """Trains versions briefly: as a job of the executor that the settings name, such as one on a
    Trainium instance, else on the CPU in the sandbox of this machine. Safe to use from several
    threads.

    A training begins only if the time of the run is sufficient for its deadline: `used_seconds` is
    what earlier ones have used of `max_seconds`. With such a limit, one runs at a time; None: no
    limit. `start_instance` is called before each job; None: the instance is not ours to start.
    """

    def __init__(
        self,
        settings: Settings,
        limits: SandboxLimits,
        *,
        start_instance: Callable[[], None] | None = None,
        max_seconds: float | None = None,
        used_seconds: float = 0.0,
    ) -> None:
        self.settings, self.limits, self.start_instance = settings, limits, start_instance
        self.max_seconds = math.inf if max_seconds is None else max_seconds
        self.used_seconds = used_seconds
        self._turn = threading.Lock()

    @property
    def identity(self) -> str:
        """What can change the outcome beside the code."""
        if endpoint := self.settings.executor.endpoint:
            return digest([endpoint, self.limits, 2])
        return digest(["local", self.limits.deadline_seconds, 2])

    def run(self, generation: CodeVersion, folder: PaperFolder) -> kinds.StageResult:
        """Train a version and store what it showed in a file of its own."""
        deadline = self.limits.deadline_seconds
        with contextlib.nullcontext() if math.isinf(self.max_seconds) else self._turn:
            if self.used_seconds + deadline > self.max_seconds:
                used = f"{self.used_seconds:.0f} of {self.max_seconds:g} s of training are used"
                finding = _executed(
                    FindingClass.BUDGET, f"{used}, and this may take {deadline:g} s"
                )
                return kinds.StageResult(stage=PipelineStage.EXECUTE, findings=(finding,))
            try:
                result = self.train(generation, folder)
            except (errors.SandboxError, errors.ExecutorError, errors.TrainiumError) as error:
                return not_run(PipelineStage.EXECUTE, str(error))
            self.used_seconds += result.numbers.get("execution_time_seconds", 0.0)
        about = {"detail": result.detail, "findings": result.findings, "metrics": result.numbers}
        name = folder.write_record(PipelineStage.EXECUTE, about, what="execution")
        return msgspec.structs.replace(result, files=(*result.files, name))

    def train(self, generation: CodeVersion, folder: PaperFolder) -> kinds.StageResult:
        """Train a version. Raises SandboxError, ExecutorError or TrainiumError: it was not run."""
        if self.settings.executor.endpoint:
            return self._train_remotely(generation, folder)
        runner = SandboxRunner()
        runner.check()
        ran = runner.run(training_files(generation), self.limits)
        return trained(ran, ran.stdout, ran.stderr)

    def _train_remotely(self, generation: CodeVersion, folder: PaperFolder) -> kinds.StageResult:
        from compilewatch.extras.executor.client import open_client

        request = protocol.JobRequest(
            files=training_files(generation),
            limits=self.limits,
            profile=True,
            paper_id=generation.paper[:200],
        )
        # An executor never runs a job again that has ended: after a limit or a fault it is another.
        lines = [r for r in folder.journal() if r.stage is PipelineStage.EXECUTE and r.findings]
        failed = sum(r.generation == generation.id and not r.is_lasting for r in lines)
        key = f"paper-{digest([generation.id, request, failed])[:40]}"
        if self.start_instance is not None:
            self.start_instance()
        with open_client(self.settings) as client:
            client.submit(key, request)
            wait = self.limits.deadline_seconds + WAIT_SECONDS
            state = client.wait(key, timeout_seconds=wait)
            logs = {name: b"".join(client.parts(key, stream=name)) for name in ("stdout", "stderr")}
            place = f"{PROFILER_FOLDER}/{key}"
            files = [
                folder.write_named(f"{place}/{artifact.name}", client.artifact(key, artifact))
                for artifact in state.artifacts
            ]
        result = trained(state.result, logs["stdout"], logs["stderr"], state)
        if usd_per_hour := self.settings.papers.usd_per_hour:
            hours = result.numbers.get("execution_time_seconds", 0.0) / 3600
            result.numbers["estimated_cost_usd"] = hours * usd_per_hour
        files += [
            folder.write(PipelineStage.EXECUTE, data, ".log", what=what)
            for what, data in logs.items()
            if data
        ]
        return msgspec.structs.replace(result, files=tuple(files))


def training_files(generation: CodeVersion) -> dict[str, str]:
    """The files of a training job, whose entry is `main.py`."""
    return _files("train", generation)


def trained(
    outcome: policy.SandboxOutcome | None,
    stdout: bytes,
    stderr: bytes,
    job: protocol.JobState | None = None,
) -> kinds.StageResult:
    """What a training showed, in the sandbox of this machine or as a `job` of an executor.

    A success without numbers is none. A job has no outcome if it was lost, or cancelled before it
    began.
    """
    where, detail = "sandbox", "trained on synthetic data in the sandbox of this machine (CPU)"
    if job is not None:
        where = "executor"
        detail = f"job {job.key}, attempt {job.attempt}, {job.state}; synthetic data"
    numbers, finding = trained_numbers(stdout), None
    if outcome is not None:
        finding = ending_of(outcome, stderr, PipelineStage.EXECUTE)
        if finding is None and not outcome.succeeded:
            finding = _executed(FindingClass.WRONG_IN_EAGER, last_line(stderr))
        numbers["execution_time_seconds"] = outcome.duration_seconds
        if outcome.peak_memory_bytes is not None:
            numbers["peak_memory_mb"] = outcome.peak_memory_bytes / MIB
    elif job is not None:
        finding = _executed(FindingClass.LOST, f"{job.state}: {job.message}")
    if finding is None and "training_loss" not in numbers:
        evidence = "it ended with status 0 and reported no training_loss"
        finding = _executed(FindingClass.CRASHED, evidence)
    numbers["execution_success"] = float(finding is None)
    return kinds.StageResult(
        stage=PipelineStage.EXECUTE,
        detail=detail,
        labels={"where": where},
        findings=(finding,) if finding else (),
        numbers=numbers,
    )


def _executed(kind: FindingClass, evidence: str) -> kinds.PaperFinding:
    return kinds.finding_of(kind, PipelineStage.EXECUTE, evidence)


def trained_numbers(stdout: bytes) -> dict[str, float]:
    """The last value of each name that a training printed, and its first and last loss.

    They are claims of the code: names of what is measured from outside are left out.
    """
    lines = protocol.read_metrics(stdout)
    numbers: dict[str, float] = {}
    for line in lines:
        numbers |= line
    losses = [line["training_loss"] for line in lines if "training_loss" in line]
    if losses:
        numbers |= {"initial_training_loss": losses[0], "final_training_loss": losses[-1]}
    return {name: value for name, value in numbers.items() if name not in MEASURED}


# --- generated models as models of the core ---

MOST_RESULT_BYTES = 8 * MIB
"""Of what a request returns: a result is stored, and read by every page about it."""


class SandboxLauncher:
    """Runs one request after the other. Raises SandboxError where code cannot be confined."""

    name = "confined"
    jobs = 1

    def __init__(
        self, environments: tuple[str, ...] = ("default",), *, cache: Path | None = None
    ) -> None:
        self._names = environments
        self._known = Environments(cache)

    @classmethod
    def of(cls, settings: Settings, names: tuple[str, ...]) -> Self:
        """The launcher for these environments."""
        return cls(names, cache=settings.cache_folder)

    def environments(self) -> tuple[records.Environment, ...]:
        return tuple(self._known.describe(name) for name in self._names)

    def run(self, requests: Iterable[records.Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Artifacts are not kept."""
        del scratch
        by_name = by_environment(requests, self._names, "this launcher has", sandboxed=True)
        for name, mine in by_name.items():
            if not mine:
                continue
            used = self._known.interpreter(name)
            sandbox.check(used.path)
            digest = self._known.describe(name).digest
            for request in mine:
                result = evaluate(request, used)
                yield Completed(result=msgspec.structs.replace(result, environment_digest=digest))


def evaluate(request: records.Request, used: Interpreter) -> records.Result:
    """Evaluate one request.

    With the tier `auto`, tensors are real: generated models are small and bring their own inputs,
    and a second attempt would import torch again.
    """
    tier = records.Tier.REAL if request.tier is records.Tier.AUTO else request.tier
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    overrides = request.overrides_dir
    # The sandbox sees no path of this machine, but what the worker reads: its own package and the
    # project's reviewed data.
    model = msgspec.structs.replace(request.model, provenance={}, inputs_file=None)
    package = Path(compilewatch.__file__).parent.resolve()
    inner = msgspec.structs.replace(request, keep_artifacts=False, model=model)
    start = messages.Start(folder=policy.OUTPUT_FOLDER, tier=tier, request=inner)
    spec = sandbox.planned(
        module_command("python", "compilewatch.extras.papers.worker.script", "request"),
        files={
            messages.START_FILE: msgspec.json.encode(start),
            SOURCE_MODULE: Path(request.model.provenance[SOURCE_FILE]).read_bytes(),
        },
        limits=SandboxLimits(
            deadline_seconds=request.deadlines.total_seconds,
            memory_bytes=max(request.memory_limit_bytes, 64 * MIB),
            disk_bytes=512 * MIB,
            output_bytes=MOST_RESULT_BYTES,
        ),
        visible=[package, *([Path(overrides).resolve()] if overrides else [])],
        variables=dict(used.variables),
        python=used.path,
    )
    ran = sandbox.run(spec)
    returned = _untrusted(ran, messages.RESULT_FILE, messages.ChildResult)
    return msgspec.structs.replace(
        returned.result if returned is not None else _without_result(request, tier, ran),
        request=request,
        started_at=started_at,
        peak_memory_bytes=ran.peak_memory_bytes,
        artifacts=(),
        attempts=(),
    )


def _without_result(
    request: records.Request, tier: records.Tier, ran: SandboxResult
) -> records.Result:
    marks = _untrusted(ran, messages.PHASES_FILE, messages.Marks)
    phase = marks[-1][0] if marks else records.Phase.SETUP
    ended = {policy.SandboxEnding.DEADLINE: Status.TIMEOUT, policy.SandboxEnding.MEMORY: Status.OOM}
    message = ran.detail or f"it ended with status {ran.exit_code}, signal {ran.signal}"
    last = kinds.one_line(last_line(ran.stderr))[:300] if ran.stderr.strip() else ""
    return records.Result(
        request=request,
        status=ended.get(ran.ending, Status.CRASHED),
        phase=phase,
        tier=tier,
        depth=records.Depth.FULL,
        detail=f"{message}, in {phase}" + (f": {last}" if last else ""),
        error=records.ErrorRecord(type=ran.ending, message=last or message, code=ran.ending),
    )


class PapersSource:
    """Generated models, by paper id. They only run in the sandbox."""

    name = "papers"

    def __init__(self, places: Places) -> None:
        self._store = PaperStore(Path(places.settings.output_dir))

    def models(self) -> tuple[records.ModelSpec, ...]:
        specs = []
        for folder in map(self._store.folder, self._store.ids()):
            with contextlib.suppress(errors.UsageError):  # no code was written
                generation, file = folder.version()
                last = {r.stage: r for r in folder.journal() if r.generation == generation.id}
                specs.append(generated_spec(generation, file, skip_reason=_why_not(last)))
        if not specs:
            raise errors.SourceError(
                f"no code of papers is stored in {self._store.root}: start with `compilewatch "
                "papers run`"
            )
        return tuple(specs)


def generated_spec(
    generation: CodeVersion, file: Path, *, skip_reason: str | None = None
) -> records.ModelSpec:
    """The model of a version of the code, with its provenance: the fields of the version."""
    provenance = {
        name: str(value)
        for name, value in msgspec.structs.asdict(generation).items()
        if name not in ("source", "bindings")
    }
    return records.ModelSpec(
        source=PapersSource.name,
        name=generation.paper,
        # `SOURCE_MODULE`, which exists inside of the sandbox only.
        build=records.FactoryBuild(
            factory="generated:model",
            inputs="generated:inputs",
            path=policy.JOB_FOLDER,
            source_sha256=generation.id,
        ),
        architecture=f"generation:{generation.id[:12]}",
        family="paper",
        task="paper",
        revision=generation.id,
        skip_reason=skip_reason,
        provenance=provenance | {SOURCE_FILE: str(file)},
    )


def _why_not(last: dict[PipelineStage, kinds.StageResult]) -> str | None:
    """The first stage that a version must pass before it is compiled, and did not."""
    stages = list(PipelineStage)
    for stage in stages[stages.index(PipelineStage.STATIC) : stages.index(PipelineStage.SWEEP)]:
        result = last.get(stage) or not_run(stage, "")
        if result.findings:
            finding = result.findings[0]
            return f"{finding.kind.value.replace('_', ' ')}: {finding.evidence}"
        if result.outcome is kinds.StageOutcome.NOT_RUN:
            return f"the stage {stage} was not run: {result.detail}".removesuffix(": ")
    return None


class Sweeper:
    """Evaluates a version on compile targets, each in a sandbox of its own.

    Where the settings name no environment for papers, each target runs in its default one.
    """

    def __init__(
        self, settings: Settings, targets: tuple[str, ...], launcher: SandboxLauncher
    ) -> None:
        self.settings, self.targets, self.launcher = settings, targets, launcher

    @property
    def identity(self) -> str:
        """Targets with their code, and the environment: a change of either can change a verdict."""
        try:
            known = [environment.digest for environment in self.launcher.environments()]
        except errors.LauncherError as error:
            known = [str(error)]
        return digest([sorted(self.targets), worker_sha256(), known])

    def run(self, generation: CodeVersion, folder: PaperFolder) -> kinds.StageResult:
        _, file = folder.version(generation.number)
        try:
            known = self.launcher.environments()
            named = tuple(filter(None, [self.settings.papers.environment]))
            placed = place(targets_of(self.targets, [records.Mode.EVAL], None), named, known)
            models = [generated_spec(generation, file)]
            planned = plan(models, placed, self.settings, known)
            done = self.launcher.run(planned.requests, folder.path)
            results = [*planned.skipped, *(completed.result for completed in done)]
        except (errors.SandboxError, errors.LauncherError) as error:
            return not_run(PipelineStage.SWEEP, str(error))
        data = msgspec.json.encode(results)
        stored = folder.write(PipelineStage.SWEEP, data, ".json", what="results")
        findings = tuple(finding for result in results for finding in findings_of(result))
        missing = [r for r in results if not r.is_verdict and not findings_of(r)]
        # A target that was not run is never one that passed.
        why = "; ".join(f"{r.request.target.name} was not run: {r.detail}" for r in missing)
        detail = ", ".join(f"{r.request.target.name} {r.status}" for r in results)
        incomplete = bool(missing) and not findings
        return kinds.StageResult(
            stage=PipelineStage.SWEEP,
            outcome=kinds.StageOutcome.NOT_RUN if incomplete else kinds.StageOutcome.PASSED,
            findings=findings,
            detail=why if incomplete else detail,
            files=(stored,),
            numbers={
                "targets": float(len(results)),
                "targets_passed": float(sum(r.status is Status.PASS for r in results)),
                "graph_breaks": float(sum(r.graph_breaks or 0 for r in results)),
            },
            labels={r.request.target.name: r.status.value for r in results},
        )


MOST_FINDINGS = 20
"""Of one result: they go into a prompt, and generated code decides how many breaks it has."""


def findings_of(result: records.Result) -> list[kinds.PaperFinding]:
    """What a result of the sweep says about the code, the first findings if there are many."""
    target = result.request.target.name
    if result.status is Status.GRAPH_BREAK:
        return [
            kinds.finding_of(
                FindingClass.GRAPH_BREAK,
                PipelineStage.SWEEP,
                f"{target}: {records.reason_label(b)} at {b.file}:{b.line}: "
                f"{records.source_line(b).strip()} {b.explanation}",
                b.line or None,
            )
            for b in result.breaks[:MOST_FINDINGS]
        ]
    compiler = result.phase in (records.Phase.COMPILE, records.Phase.COMPARE)
    kind = {
        Status.MISMATCH: FindingClass.MISMATCH,
        Status.TIMEOUT: FindingClass.TIMED_OUT,
        Status.OOM: FindingClass.OOM,
        Status.CRASHED: FindingClass.CRASHED,
        Status.ERROR: FindingClass.COMPILER_CANNOT if compiler else FindingClass.WRONG_IN_EAGER,
    }.get(result.status)
    if kind is None:
        return []
    evidence = result.detail or (result.error.message if result.error else result.status.value)
    return [kinds.finding_of(kind, PipelineStage.SWEEP, f"{target}, {result.phase}: {evidence}")]
