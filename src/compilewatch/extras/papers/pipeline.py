"""`compilewatch papers run`: papers through the stages, each stored before the next one begins.

Nothing is kept in memory only. A stage whose result is in the journal under the same key is not
repeated, and a call whose reply is in the ledger is not sent again, so that a run that was killed
continues where it was.
"""

import contextlib
import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from compilewatch.config import Settings
from compilewatch.errors import SourceError, UsageError
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.papers import Prompt, calls, checks, execution, libraries
from compilewatch.extras.papers import records as kinds
from compilewatch.extras.papers.records import FindingClass, PipelineStage, StageResult
from compilewatch.extras.papers.store import PaperFolder, PaperStore, summarise_paper
from compilewatch.plan import check_targets, targets_of
from compilewatch.records import Mode, digest, now
from compilewatch.report.wording import plural

if TYPE_CHECKING:
    from compilewatch.extras.papers.providers import Provider

Content = TypeVar("Content")

Observer = Callable[[StageResult], None]


class _StoppedError(Exception):
    """No further stage of this paper can run."""


@dataclass(frozen=True)
class Pipeline:
    """What all papers of a run share. With `until` = `generate`, no code is run or reviewed."""

    store: PaperStore
    library: libraries.PaperLibrary
    caller: calls.Caller
    runner: execution.SandboxRunner
    sweeper: execution.Sweeper
    trainer: execution.Trainer
    max_paper_tokens: int = 40_000
    max_repairs: int = 3
    observer: Observer = lambda _: None
    until: PipelineStage = PipelineStage.EXECUTE

    def run(self, papers: Sequence[kinds.Paper], jobs: int = 1) -> tuple[kinds.PaperSummary, ...]:
        """Process papers, so many at a time, and return their summaries in the same order.

        The first error is raised once the papers in work have ended; no other is begun. The threads
        do not keep the process alive: after Ctrl-C it ends at once.
        """
        summaries: dict[str, kinds.PaperSummary] = {}
        errors: list[BaseException] = []
        waiting = iter(papers)  # a step of it is one step of the interpreter

        def loop() -> None:
            for paper in waiting:
                if errors:
                    return
                try:
                    summaries[paper.id] = self.process(paper)
                except BaseException as error:  # noqa: BLE001  (raised again below)
                    errors.append(error)

        if min(jobs, len(papers)) <= 1:
            loop()
        else:
            threads = [threading.Thread(target=loop, daemon=True) for _ in range(jobs)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        return tuple(summaries[paper.id] for paper in papers)

    def process(self, paper: kinds.Paper) -> kinds.PaperSummary:
        """Process one paper. What is wrong with it is in its summary."""
        work = PaperWork(self, paper, self.store.folder(paper.id))
        with contextlib.suppress(_StoppedError):
            work.run()
        return summarise_paper(work.lines, self.caller.ledger.entries())


class PaperWork:
    """One paper on its way through the stages, and the lines of its journal.

    `version` is the version of the code that is at work.
    """

    def __init__(self, pipeline: Pipeline, paper: kinds.Paper, folder: PaperFolder) -> None:
        self.pipeline, self.paper, self.folder = pipeline, paper, folder
        self.prompts = calls.Prompts(paper, pipeline.caller.rules)
        self.lines = list(folder.journal())
        self.version: kinds.CodeVersion | None = None
        self.raw_sha256 = ""

    def run(self) -> None:
        """Run the stages. Raises _StoppedError where no later one can."""
        self._find()
        text = self._read()
        plan = self._plan(text)
        version = self._generate(self.prompts.generate(text, plan), digest(plan), None)
        if self.pipeline.until is PipelineStage.GENERATE:
            return
        while True:
            findings = self._check(version, plan)
            wrong = [finding for finding in findings if finding.kind in kinds.REPAIRABLE]
            if not wrong or version.number >= self.pipeline.max_repairs:
                break
            prompt = self.prompts.repair(plan, version, wrong)
            repaired = self._generate(prompt, version.id, version)
            if repaired.id == version.id:
                break  # the model has nothing better
            version = repaired
        if any(finding.stage is not PipelineStage.SWEEP for finding in findings):
            return
        if why := {line.stage: line for line in self.lines}[PipelineStage.EAGER].not_run:
            self._skip(PipelineStage.EXECUTE, version, why)
        else:
            self._checked(PipelineStage.EXECUTE, self.pipeline.trainer, version)

    # --- the journal ---

    def known(self, stage: PipelineStage, key: str) -> StageResult | None:
        """The lasting result of a stage, which becomes its newest here: the newest counts."""
        for line in reversed(self.lines):
            if line.stage is stage and line.key == key and line.is_lasting:
                if self.lines[-1] is not line:
                    self.lines.append(line)
                return line
        return None

    def add(self, key: str, result: StageResult) -> StageResult:
        """Store what a stage showed."""
        before_code = (PipelineStage.FIND, PipelineStage.READ, PipelineStage.PLAN)
        version = None if result.stage in before_code else self.version
        result = msgspec.structs.replace(
            result,
            paper=self.paper.id,
            key=key,
            outcome=kinds.StageOutcome.FAILED if result.findings else result.outcome,
            at=now(),
            generation=version.id if version else None,
            # JSON has no NaN: one would make the line unreadable.
            numbers={n: value for n, value in result.numbers.items() if math.isfinite(value)},
            scripted=result.scripted or (version is not None and version.scripted),
        )
        self.folder.append(result)
        self.lines.append(result)
        self.pipeline.observer(result)
        return result

    def _once(
        self, stage: PipelineStage, key: str, *files: Callable[[], str], **fields: Any
    ) -> StageResult:
        """The lasting result of a stage, else a new one; its `files` are then written."""
        if (known := self.known(stage, key)) is not None:
            return known
        names = tuple(write() for write in files)
        return self.add(key, StageResult(stage=stage, files=names, **fields))

    def _skip(self, stage: PipelineStage, version: kinds.CodeVersion, why: str) -> None:
        self.add(f"{version.id}-not-run", kinds.not_run(stage, why))

    # --- stages without generated code ---

    def _find(self) -> None:
        stage = PipelineStage.FIND
        self._once(
            stage,
            digest(self.paper),
            partial(self.folder.write_record, stage, self.paper, what="paper"),
            labels={"title": self.paper.title[:200], "library": self.paper.library},
            detail=self.paper.location,
        )

    def _read(self) -> libraries.PaperText:
        stage, limit = PipelineStage.READ, self.pipeline.max_paper_tokens
        try:
            data = self.pipeline.library.fetch(self.paper)
            text = libraries.read_text(data, max_tokens=limit)
        except SourceError as error:
            finding = kinds.finding_of(FindingClass.UNREADABLE, stage, str(error))
            self._once(stage, digest([self.paper.location, str(error)]), findings=(finding,))
            raise _StoppedError from None
        self.raw_sha256 = hashlib.sha256(data).hexdigest()
        sha256 = hashlib.sha256(text.text.encode()).hexdigest()
        tokens, left = libraries.estimate_tokens(text.text), text.left_out_characters
        left_out = f", {left:,} characters left out" if left else ""
        self._once(
            stage,
            digest([self.raw_sha256, sha256]),
            partial(self.folder.write, stage, text.text.encode(), ".txt", what="text"),
            detail=f"{text.format}, {tokens:,} tokens{left_out}",
            numbers={"tokens": float(tokens), "left_out_characters": float(left)},
            labels={"format": text.format, "raw_sha256": self.raw_sha256, "sha256": sha256},
        )
        return text

    def _plan(self, text: libraries.PaperText) -> kinds.PaperPlan:
        stage = PipelineStage.PLAN
        prompt = self.prompts.plan(text)
        plan, call = self._reply(calls.plan_of, prompt, stage, self.raw_sha256)
        dataset = kinds.one_line(plan.dataset)
        self._once(
            stage,
            call.key,
            partial(self.folder.write_record, stage, plan, what="plan"),
            detail=f"{plural(len(plan.claims), 'claim')}; dataset: {dataset or 'none'}",
            labels={"dataset": dataset},
            scripted=call.scripted,
        )
        return plan

    def _generate(
        self, prompt: Prompt, parent: str, earlier: kinds.CodeVersion | None
    ) -> kinds.CodeVersion:
        stage = PipelineStage.GENERATE
        (source, bindings), call = self._reply(calls.code_of, prompt, stage, parent)
        self.version = version = kinds.CodeVersion(
            id=digest(source),
            paper=self.paper.id,
            source=source,
            number=earlier.number + 1 if earlier else 0,
            model=call.model,
            call=call.key,
            prompt_sha256=digest([prompt.role.system, prompt.text]),
            rules_sha256=self.pipeline.caller.rules.sha256,
            paper_sha256=self.raw_sha256,
            parent=earlier.id if earlier else None,
            bindings=bindings,
            scripted=call.scripted,
        )
        short, lines = f"v{version.number}_{version.id[:12]}", len(source.splitlines())
        self._once(
            stage,
            call.key,
            partial(self.folder.write, stage, source.encode(), ".py", what=short),
            partial(self.folder.write_record, stage, version, what=short),
            detail=f"version {version.number}, {lines} lines, {version.id[:12]}",
            numbers={"version": float(version.number), "lines": float(lines)},
        )
        return version

    # --- the checks of one version ---

    def _check(
        self, version: kinds.CodeVersion, plan: kinds.PaperPlan
    ) -> tuple[kinds.PaperFinding, ...]:
        """The findings of a version. A stage that fails keeps the later ones from running."""
        key = digest([version.id, checks.SOURCE_VERSION])
        findings = checks.check_source(version.source)
        detail = "" if findings else "no finding"
        result = self._once(PipelineStage.STATIC, key, findings=findings, detail=detail)
        if result.findings:
            return result.findings
        review, result = self._review(version, plan)
        if result.findings:
            return result.findings
        eager, formulas = self._run_eager(version, plan)
        if eager.findings:
            return eager.findings
        faithful = self._compare(version, plan, review, formulas)
        if eager.not_run:
            self._skip(PipelineStage.SWEEP, version, eager.not_run)
        if faithful.findings or eager.not_run:
            return faithful.findings
        return self._checked(PipelineStage.SWEEP, self.pipeline.sweeper, version).findings

    def _review(
        self, version: kinds.CodeVersion, plan: kinds.PaperPlan
    ) -> tuple[kinds.Review, StageResult]:
        """The review of a version. Without a valid review nothing is approved or run."""
        stage = PipelineStage.REVIEW
        not_approved = partial(kinds.finding_of, FindingClass.NOT_APPROVED, stage)
        prompt = self.prompts.review(plan, version)
        read = partial(calls.decoded, kind=kinds.Review, stage=stage)
        review, call = self._reply(read, prompt, stage, version.id)
        serious = [issue for issue in review.issues if issue.severity != "minor"]
        findings = [not_approved(issue.statement, issue.line) for issue in serious]
        if not review.approved and not findings:
            findings.append(not_approved("the review does not approve this version"))
        minor = plural(len(review.issues) - len(serious), "minor issue")
        return review, self._once(
            stage,
            call.key,
            partial(self.folder.write_record, stage, review, what="review"),
            findings=tuple(findings),
            detail="" if findings else f"approved, {minor}",
        )

    def _run_eager(
        self, version: kinds.CodeVersion, plan: kinds.PaperPlan
    ) -> tuple[StageResult, StageResult]:
        """Run the code, which the formulas need too, unless both results are in the journal."""
        stage = PipelineStage.EAGER
        key = digest([version.id, digest(plan), "eager", 4])
        if (known := self.known(stage, key)) is not None:
            stored = msgspec.json.decode(self.folder.read(known.files[0]))
            return known, msgspec.convert(stored["formulas"], StageResult)
        eager, formulas = execution.run_eager(self.pipeline.runner, version, plan)
        if not eager.not_run:
            both = {"eager": eager, "formulas": formulas}
            name = self.folder.write_record(stage, both, what="eager")
            eager = msgspec.structs.replace(eager, files=(name,))
        return self.add(key, eager), formulas

    def _compare(
        self,
        version: kinds.CodeVersion,
        plan: kinds.PaperPlan,
        review: kinds.Review,
        formulas: StageResult,
    ) -> StageResult:
        """Whether the code contains the paper's contribution."""
        stage = PipelineStage.FAITHFUL
        key = digest([version.id, digest(plan), digest(review), checks.FAITHFUL_VERSION])
        findings = (
            *checks.check_structure(version.source, plan),
            *checks.check_rubric(version.source, plan, review),
            *formulas.findings,
        )
        claims = f"{plural(len(plan.claims), 'claim')} in structure and review"
        if formulas.not_run and not findings:
            why = f"{claims}; formulas were not computed: {formulas.not_run}"
            return self.known(stage, key) or self.add(key, kinds.not_run(stage, why))
        detail = f"{claims}; {'' if formulas.not_run else formulas.detail}"
        return self._once(stage, key, findings=findings, detail=detail, numbers=formulas.numbers)

    def _checked(
        self,
        stage: PipelineStage,
        checker: execution.Sweeper | execution.Trainer,
        version: kinds.CodeVersion,
    ) -> StageResult:
        """The result of a stage that runs generated code in the sandbox."""
        key = digest([version.id, checker.identity])
        return self.known(stage, key) or self.add(key, checker.run(version, self.folder))

    # --- calls ---

    def _reply(
        self,
        read: Callable[[kinds.ModelCall], Content],
        prompt: Prompt,
        stage: PipelineStage,
        parent: str,
    ) -> tuple[Content, kinds.ModelCall]:
        """What `read` returns for the reply to a prompt, and the call."""
        key = self.pipeline.caller.key(prompt, parent)
        try:
            call = self.pipeline.caller.call(prompt, key, stage)
            return read(call), call
        except kinds.FoundError as error:
            self._once(error.finding.stage, key, findings=(error.finding,))
            raise _StoppedError from None


def run_papers(
    settings: Settings,
    library: libraries.PaperLibrary,
    provider: "Provider",
    papers: Sequence[kinds.Paper],
    limits: Mapping[str, float | None],
    *,
    targets: tuple[str, ...] = ("dynamo", "export"),
    environments: tuple[str, ...] = ("default",),
    max_device_seconds: float | None = None,
    jobs: int = 1,
    trainium: bool = False,
    state: Path | None = None,
    until: PipelineStage = PipelineStage.EXECUTE,
    observer: Observer = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[kinds.PaperSummary, ...]:
    """Process papers and return their summaries. Only one run writes to a folder at a time.

    Args:
        limits: of what may be paid, see `calls.LIMITS`.
        targets: compile targets of the sweep.
        environments: those that exist for the targets.
        max_device_seconds: the most time of all trainings together, with earlier runs.
        jobs: papers at a time.
        trainium: start the instance of the executor when there is work, and stop it afterwards.
        state: the file that says so to `compilewatch trainium down`; None: the one in the cache.
        until: `generate` or the last stage.
        observer: gets the result of each stage.
        say: prints lines about the instance.

    Raises UsageError for options that contradict the settings.
    """
    check_targets(targets_of(targets, [Mode.EVAL], None))
    if trainium and not settings.executor.endpoint:
        raise UsageError("--trainium needs the address of its executor: set TRAINIUM_ENDPOINT")
    own = settings.papers
    store = PaperStore(Path(settings.output_dir))
    with contextlib.ExitStack() as stack:
        stack.callback(provider.close)
        stack.enter_context(store.locked())
        caller = calls.Caller(
            store.ledger,
            provider,
            calls.load_rules(Path(own.rules_file)),
            calls.price_of(Path(own.prices_file), provider.model),
            limits,
            (paper.id for paper in papers),
        )
        start = None
        if trainium:
            from compilewatch.extras.executor import trainium as instances
            from compilewatch.extras.executor.client import open_client

            client = stack.enter_context(open_client(settings))
            place = state or instances.state_file(settings)
            operation = instances.Operation(settings, place, say)
            start = stack.enter_context(
                instances.on_demand(lambda: instances.running(operation, client, say))
            )
        trainer = execution.Trainer(
            settings,
            SandboxLimits(
                deadline_seconds=min(own.device_seconds, max_device_seconds or math.inf),
                memory_bytes=settings.memory_limit_bytes,
                disk_bytes=256 * MIB,
            ),
            start_instance=start,
            max_seconds=max_device_seconds,
            used_seconds=sum(
                execution.seconds_of(store.folder(paper.id).journal()) for paper in papers
            ),
        )
        launcher = execution.SandboxLauncher.of(settings, environments)
        pipeline = Pipeline(
            store,
            library,
            caller,
            execution.SandboxRunner(),
            execution.Sweeper(settings, targets, launcher),
            trainer,
            max_paper_tokens=own.max_paper_tokens,
            max_repairs=own.max_repairs,
            observer=observer,
            until=until,
        )
        return pipeline.run(papers, jobs)
