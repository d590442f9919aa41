"""`compilewatch papers run`: papers through the stages, each stored before the next one begins.

Nothing is kept in memory only. A stage whose result is in the journal under the same key is not
repeated, and a call whose reply is in the ledger is not sent again, so that a run that was killed
continues where it was.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from compilewatch.config import Settings
from compilewatch.errors import SourceError, UsageError
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.executor.trainium import OnDemand, instance_of
from compilewatch.extras.papers import PaperLibrary, Prompt, Provider, prompts, static
from compilewatch.extras.papers import faithfulness as faithful
from compilewatch.extras.papers.analysis import summarise_paper
from compilewatch.extras.papers.calls import Budget, Caller, NoReplyError, price_of
from compilewatch.extras.papers.execution import (
    CodeRunner,
    DeviceTime,
    LimitedTraining,
    LocalTraining,
    RemoteTraining,
    SandboxRunner,
    Training,
    client_of,
    run_eager,
    seconds_of,
)
from compilewatch.extras.papers.launcher import ConfinedLauncher
from compilewatch.extras.papers.prompts import load_rules, offline
from compilewatch.extras.papers.records import (
    REPAIRABLE,
    CodeVersion,
    FindingClass,
    ModelCall,
    Paper,
    PaperFinding,
    PaperPlan,
    PaperSummary,
    PaperText,
    PipelineStage,
    Review,
    StageContent,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.store import PaperFolder, PaperStore
from compilewatch.extras.papers.sweep import Sweeper
from compilewatch.extras.papers.text import UnreadableError, read_text
from compilewatch.plan import check_targets, targets_of
from compilewatch.records import Mode, Record, digest, now
from compilewatch.report.wording import plural

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> tuple[Result, ...]:
    """The results of `work` in the order of the items, of which `jobs` are worked on at a time.

    The first error is raised once the items in work have ended; no other is begun. The threads do
    not keep the process alive: after Ctrl-C it ends at once, so what they do must be stored as it
    is done.
    """
    if jobs <= 1 or len(items) <= 1:
        return tuple(work(item) for item in items)
    futures: list[Future[Result]] = [Future() for _ in items]
    waiting = list(zip(futures, items, strict=True))[::-1]
    lock = threading.Lock()

    def loop() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                future, item = waiting.pop()
            try:
                future.set_result(work(item))
            except BaseException as error:  # noqa: BLE001  (raised again below)
                with lock:
                    waiting.clear()
                future.set_exception(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(min(jobs, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for future in futures:
        if future.done() and (error := future.exception()) is not None:
            raise error
    return tuple(future.result() for future in futures)


Observer = Callable[[StageResult], None]


def failed(finding: PaperFinding) -> StageContent:
    return StageContent(findings=(finding,))


def listed(findings: Iterable[PaperFinding], detail: str) -> StageContent:
    listed_findings = tuple(findings)
    return StageContent(findings=listed_findings, detail="" if listed_findings else detail)


@dataclass(kw_only=True)
class Journal:
    """The stage results of one paper. `version` is the version of the code that is at work."""

    paper: str
    folder: PaperFolder
    observer: Observer
    lines: list[StageResult]
    version: CodeVersion | None = None

    def stage(
        self, stage: PipelineStage, key: str, make: Callable[[], StageContent]
    ) -> StageResult:
        """The result of a stage from the journal, or a new one, stored."""
        for known in reversed(self.lines):
            if known.stage is stage and known.key == key and known.is_lasting:
                if self.lines[-1] is not known:
                    # The newest line of a stage is what counts: keep this one as the newest here.
                    self.lines.append(known)
                return known
        result = self._result(stage, key, make())
        if (same := _repeated(self.lines, result)) is not None:
            result = same
        else:
            self.folder.append(result)
        self.lines.append(result)
        self.observer(result)
        return result

    def not_run(self, stage: PipelineStage, generation: CodeVersion, why: str) -> None:
        """Store why a stage of a version was not run."""
        self.stage(stage, f"{generation.id}-not-run", lambda: StageContent(not_run=why))

    def _result(self, stage: PipelineStage, key: str, new: StageContent) -> StageResult:
        outcome = StageOutcome.FAILED if new.findings else StageOutcome.PASSED
        if new.not_run:
            outcome = StageOutcome.NOT_RUN
        of_code = stage not in (PipelineStage.FIND, PipelineStage.READ, PipelineStage.PLAN)
        version = self.version if of_code else None
        return StageResult(
            paper=self.paper,
            stage=stage,
            key=key,
            outcome=outcome,
            at=now(),
            generation=version.id if version else None,
            detail=new.not_run or new.detail,
            findings=new.findings,
            files=new.files,
            # JSON has no NaN: one would make the line unreadable.
            numbers={n: value for n, value in new.numbers.items() if math.isfinite(value)},
            labels=new.labels,
            scripted=new.scripted or (version.scripted if version else False),
        )


def _repeated(journal: Sequence[StageResult], result: StageResult) -> StageResult | None:
    """The newest line of the stage if it says the same, so that running again adds nothing."""
    last = next((known for known in reversed(journal) if known.stage is result.stage), None)
    if last is None or result.is_lasting:
        return None
    same = msgspec.structs.replace(last, at=result.at, files=result.files, numbers=result.numbers)
    return last if same == result else None


class Checker(Protocol):
    """A stage that runs generated code, confined: the sweep, or the execution."""

    @property
    def identity(self) -> str:
        """What can change the outcome beside the code: environment, targets, limits."""
        ...

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageContent: ...


class _StoppedError(Exception):
    """No further stage of this paper can run."""


@dataclass(kw_only=True)
class Pipeline:
    """What all papers of a run share. With `until` = `generate`, no code is run or reviewed."""

    store: PaperStore
    library: PaperLibrary
    caller: Caller
    runner: CodeRunner
    sweeper: Checker
    executor: Checker
    max_paper_tokens: int
    observer: Observer = lambda _: None
    until: PipelineStage = PipelineStage.EXECUTE

    def run(self, papers: Sequence[Paper], jobs: int = 1) -> tuple[PaperSummary, ...]:
        """Process papers, so many at a time, and return their summaries in the same order."""
        return tuple(in_threads(self.process, papers, jobs))

    def process(self, paper: Paper) -> PaperSummary:
        """Process one paper. What is wrong with it is in its summary."""
        folder = self.store.folder(paper.id)
        journal = Journal(
            paper=paper.id, folder=folder, observer=self.observer, lines=list(folder.journal())
        )
        work = _Work(pipeline=self, paper=paper, folder=folder, journal=journal)
        with contextlib.suppress(_StoppedError):
            work.run()
        return summarise_paper(journal.lines, self.caller.ledger.entries())


@dataclass(kw_only=True)
class _Work:
    """One paper on its way through the stages."""

    pipeline: Pipeline
    paper: Paper
    folder: PaperFolder
    journal: Journal

    def run(self) -> None:
        self._found()
        text = self._read()
        plan, parent = self._planned(text)
        rules = self.pipeline.caller.rules
        prompt = prompts.generate_prompt(self.paper, text, plan, rules)
        generation = self._generated(prompt, text, parent, None)
        if self.pipeline.until is PipelineStage.GENERATE:
            return
        repairs = self.pipeline.caller.budget.max_repairs
        while True:
            findings = self._checked(generation, plan)
            wrong = [finding for finding in findings if finding.kind in REPAIRABLE]
            if not wrong or generation.number >= repairs:
                break
            prompt = prompts.repair_prompt(self.paper, plan, rules, generation, wrong)
            repaired = self._generated(prompt, text, generation.id, generation)
            if repaired.id == generation.id:
                break  # the model has nothing better
            generation = repaired
        blocking = [f for f in findings if f.stage is not PipelineStage.SWEEP]
        if not blocking:
            self._executed(generation)

    # --- stages without generated code ---

    def _found(self) -> None:
        about = msgspec.structs.replace(self.paper, ingested_at="")
        labels = {"title": self.paper.title[:200], "library": self.paper.library}

        def make() -> StageContent:
            name = self.folder.write_record(PipelineStage.FIND, self.paper, what="paper")
            return StageContent(files=(name,), labels=labels, detail=self.paper.location)

        self.journal.stage(PipelineStage.FIND, digest(about), make)

    def _read(self) -> PaperText:
        limit = self.pipeline.max_paper_tokens
        try:
            text = read_text(self.pipeline.library.fetch(self.paper), max_tokens=limit)
        except (UnreadableError, SourceError) as error:
            finding = PaperFinding(
                kind=FindingClass.UNREADABLE, stage=PipelineStage.READ, evidence=str(error)
            )
            self.journal.stage(
                PipelineStage.READ,
                digest([self.paper.location, str(error)]),
                lambda: failed(finding),
            )
            raise _StoppedError from None

        def make() -> StageContent:
            name = self.folder.write(PipelineStage.READ, text.text.encode(), ".txt", what="text")
            left = text.left_out_characters
            detail = f"{text.format}, {text.tokens:,} tokens"
            detail += f", {left:,} characters left out" if left else ""
            numbers = {"tokens": float(text.tokens), "left_out_characters": float(left)}
            labels = {"format": text.format, "raw_sha256": text.raw_sha256, "sha256": text.sha256}
            return StageContent(files=(name,), detail=detail, numbers=numbers, labels=labels)

        self.journal.stage(PipelineStage.READ, digest([text.raw_sha256, text.sha256]), make)
        return text

    def _planned(self, text: PaperText) -> tuple[PaperPlan, str]:
        prompt = prompts.plan_prompt(self.paper, text, self.pipeline.caller.rules)
        call, key = self._called(prompt, PipelineStage.PLAN, text.raw_sha256)
        try:
            plan = prompts.plan_of(call)
        except prompts.InvalidReplyError as error:
            finding = error.finding
            self.journal.stage(PipelineStage.PLAN, key, lambda: failed(finding))
            raise _StoppedError from None

        def make() -> StageContent:
            name = self.folder.write_record(PipelineStage.PLAN, plan, what="plan")
            used, sentence = offline(plan.dataset)
            return StageContent(
                files=(name,),
                detail=f"{plural(len(plan.claims), 'claim')}; dataset: {sentence}",
                labels={"dataset": used, "recommended_dataset": plan.dataset},
                scripted=call.scripted,
            )

        self.journal.stage(PipelineStage.PLAN, key, make)
        return plan, digest(plan)

    def _generated(
        self, prompt: Prompt, text: PaperText, parent: str, earlier: CodeVersion | None
    ) -> CodeVersion:
        call, key = self._called(prompt, PipelineStage.GENERATE, parent)
        try:
            code = prompts.code_of(call)
        except prompts.InvalidReplyError as error:
            finding = error.finding
            self.journal.stage(PipelineStage.GENERATE, key, lambda: failed(finding))
            raise _StoppedError from None
        generation = CodeVersion(
            id=digest(code.source),
            paper=self.paper.id,
            source=code.source,
            number=earlier.number + 1 if earlier else 0,
            model=call.model,
            call=call.key,
            prompt_sha256=digest([prompt.system, prompt.text]),
            rules_sha256=self.pipeline.caller.rules.sha256,
            paper_sha256=text.raw_sha256,
            parent=earlier.id if earlier else None,
            bindings=code.bindings,
            scripted=call.scripted,
            created_at=call.at,
        )

        def make() -> StageContent:
            short = f"v{generation.number}_{generation.id[:12]}"
            module = self.folder.write(
                PipelineStage.GENERATE, code.source.encode(), ".py", what=short
            )
            about = self.folder.write_record(PipelineStage.GENERATE, generation, what=short)
            lines = len(code.source.splitlines())
            return StageContent(
                files=(module, about),
                detail=f"version {generation.number}, {lines} lines, {generation.id[:12]}",
                numbers={"version": float(generation.number), "lines": float(lines)},
            )

        self.journal.version = generation
        self.journal.stage(PipelineStage.GENERATE, key, make)
        return generation

    # --- the checks of one version ---

    def _checked(self, generation: CodeVersion, plan: PaperPlan) -> tuple[PaperFinding, ...]:
        """The findings of a version. A stage that fails keeps the later ones from running."""
        result = self.journal.stage(
            PipelineStage.STATIC,
            digest([generation.id, static.VERSION]),
            lambda: listed(static.check_source(generation.source), "no finding"),
        )
        if result.findings:
            return result.findings
        review, stage = self._reviewed(generation, plan)
        if review is None or stage.findings:
            return stage.findings
        eager, formulas, findings = self._ran_eager(generation, plan)
        if findings:
            return findings
        faithfulness = self._faithful(generation, plan, review, formulas)
        if faithfulness.findings or eager.not_run:
            if eager.not_run:
                self.journal.not_run(PipelineStage.SWEEP, generation, eager.not_run)
            return faithfulness.findings
        return self._swept(generation).findings

    def _reviewed(
        self, generation: CodeVersion, plan: PaperPlan
    ) -> tuple[Review | None, StageResult]:
        """The review of a version. Without a valid review nothing is approved."""
        prompt = prompts.review_prompt(self.paper, plan, self.pipeline.caller.rules, generation)
        call, key = self._called(prompt, PipelineStage.REVIEW, generation.id)
        try:
            review = prompts.review_of(call)
        except prompts.InvalidReplyError as error:
            finding = error.finding
            return None, self.journal.stage(PipelineStage.REVIEW, key, lambda: failed(finding))

        def make() -> StageContent:
            name = self.folder.write_record(PipelineStage.REVIEW, review, what="review")
            findings = [
                PaperFinding(
                    kind=FindingClass.NOT_APPROVED,
                    stage=PipelineStage.REVIEW,
                    evidence=" ".join(issue.statement.split())[:400],
                    line=issue.line,
                )
                for issue in review.issues
                if issue.severity != "minor"
            ]
            if not review.approved and not findings:
                evidence = "the review does not approve this version"
                findings.append(
                    PaperFinding(
                        kind=FindingClass.NOT_APPROVED,
                        stage=PipelineStage.REVIEW,
                        evidence=evidence,
                    )
                )
            minor = len(review.issues) - len(findings)
            return StageContent(
                findings=tuple(findings),
                files=(name,),
                detail=f"approved, {plural(minor, 'minor issue')}" if not findings else "",
            )

        return review, self.journal.stage(PipelineStage.REVIEW, key, make)

    def _ran_eager(
        self, generation: CodeVersion, plan: PaperPlan
    ) -> tuple[StageContent, StageContent, tuple[PaperFinding, ...]]:
        """Run the code, which the formulas need too, unless both results are in the journal."""
        key = digest([generation.id, digest(plan), "eager", 2])
        ran: list[tuple[StageContent, StageContent]] = []

        def make() -> StageContent:
            ran.append(run_eager(self.pipeline.runner, generation, plan))
            eager, formulas = ran[0]
            if eager.not_run:
                return eager
            name = self.folder.write_record(
                PipelineStage.EAGER, _EagerFile(eager=eager, formulas=formulas), what="eager"
            )
            return msgspec.structs.replace(eager, files=(name,))

        stage = self.journal.stage(PipelineStage.EAGER, key, make)
        if ran:
            return *ran[0], stage.findings
        stored = msgspec.json.decode(self.folder.read(stage.files[0]), type=_EagerFile)
        return stored.eager, stored.formulas, stage.findings

    def _faithful(
        self, generation: CodeVersion, plan: PaperPlan, review: Review, formulas: StageContent
    ) -> StageResult:
        key = digest([generation.id, digest(plan), digest(review), faithful.VERSION])

        def make() -> StageContent:
            findings = (
                *faithful.check_structure(generation.source, plan),
                *faithful.check_rubric(generation.source, plan, review),
                *formulas.findings,
            )
            claims = f"{plural(len(plan.claims), 'claim')} in structure and review"
            if formulas.not_run and not findings:
                why = f"{claims}; formulas were not computed: {formulas.not_run}"
                return StageContent(not_run=why)
            return StageContent(
                findings=findings, detail=f"{claims}; {formulas.detail}", numbers=formulas.numbers
            )

        return self.journal.stage(PipelineStage.FAITHFUL, key, make)

    def _swept(self, generation: CodeVersion) -> StageResult:
        sweeper = self.pipeline.sweeper
        return self.journal.stage(
            PipelineStage.SWEEP,
            digest([generation.id, sweeper.identity]),
            lambda: sweeper.run(generation, self.folder),
        )

    def _executed(self, generation: CodeVersion) -> None:
        last = {result.stage: result for result in self.journal.lines}
        eager = last.get(PipelineStage.EAGER)
        if eager is None or eager.outcome is not StageOutcome.PASSED:
            why = eager.detail if eager is not None else "the code was not run in eager mode"
            self.journal.not_run(PipelineStage.EXECUTE, generation, why)
            return
        executor = self.pipeline.executor
        self.journal.stage(
            PipelineStage.EXECUTE,
            digest([generation.id, executor.identity]),
            lambda: executor.run(generation, self.folder),
        )

    # --- storing ---

    def _called(self, prompt: Prompt, stage: PipelineStage, parent: str) -> tuple[ModelCall, str]:
        caller = self.pipeline.caller
        key = caller.key(prompt, parent)
        try:
            return caller.call(prompt, stage=stage, parent=parent), key
        except NoReplyError as error:
            finding = error.finding
            self.journal.stage(stage, key, lambda: failed(finding))
            raise _StoppedError from None


class _EagerFile(Record, frozen=True, kw_only=True):
    eager: StageContent
    formulas: StageContent


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """How a run processes its papers.

    `environments` are those that exist for the targets; with `named`, every target runs in each of
    them. `max_device_seconds` limits the training of all papers together, with earlier runs.
    `trainium`: start the instance of the executor when there is work, and stop it afterwards;
    `state` is the file that says so to `compilewatch trainium down`.
    `until` is `generate` or the last stage.
    """

    targets: tuple[str, ...] = ("dynamo", "export")
    environments: tuple[str, ...] = ("default",)
    named: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)
    max_device_seconds: float | None = None
    jobs: int = 1
    trainium: bool = False
    state: Path | None = None
    until: PipelineStage = PipelineStage.EXECUTE


def run_papers(
    settings: Settings,
    library: PaperLibrary,
    provider: Provider,
    papers: Sequence[Paper],
    options: PaperOptions = PaperOptions(),
    *,
    observer: Observer = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    runner: CodeRunner | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[PaperSummary, ...]:
    """Process papers and return their summaries. Only one run writes to a folder at a time.

    Raises UsageError for options that contradict the settings. `say` prints about the instance.
    """
    check_targets(targets_of(options.targets, [Mode.EVAL], None))
    if options.trainium and not settings.of(ExecutorSettings).endpoint:
        raise UsageError("--trainium needs the address of its executor: set TRAINIUM_ENDPOINT")
    own = settings.of(PapersSettings)
    store = PaperStore(Path(settings.output_dir))
    chosen = runner or SandboxRunner()
    with contextlib.ExitStack() as stack:
        stack.callback(provider.close)
        stack.enter_context(store.locked())
        used = sum(seconds_of(store.folder(paper.id).journal()) for paper in papers)
        caller = Caller(
            ledger=store.ledger,
            provider=provider,
            rules=load_rules(Path(own.rules_file)),
            price=price_of(Path(own.prices_file), provider.model),
            budget=options.budget,
            papers=frozenset(paper.id for paper in papers),
            run=now(),
            sleep=sleep,
        )
        launcher = ConfinedLauncher(1, options.environments, cache=settings.cache_folder)
        instance = _instance(settings, options, stack, say) if options.trainium else None
        pipeline = Pipeline(
            store=store,
            library=library,
            caller=caller,
            runner=chosen,
            sweeper=Sweeper(
                settings=settings, targets=options.targets, launcher=launcher, named=options.named
            ),
            executor=LimitedTraining(
                training=_training(settings, chosen, options, instance),
                time=DeviceTime(most=options.max_device_seconds, used=used),
            ),
            max_paper_tokens=own.max_paper_tokens,
            observer=observer,
            until=options.until,
        )
        return pipeline.run(papers, options.jobs)


def _instance(
    settings: Settings,
    options: PaperOptions,
    stack: contextlib.ExitStack,
    say: Callable[[str], None],
) -> OnDemand:
    client = stack.enter_context(client_of(settings))
    make = partial(instance_of, settings, client, say, options.state)
    return stack.enter_context(OnDemand(make))


def _training(
    settings: Settings, runner: CodeRunner, options: PaperOptions, instance: OnDemand | None
) -> Training:
    seconds = settings.of(PapersSettings).device_seconds
    if options.max_device_seconds is not None:
        seconds = min(seconds, options.max_device_seconds)
    limits = SandboxLimits(
        deadline_seconds=seconds,
        memory_bytes=settings.memory_limit_bytes,
        disk_bytes=256 * MIB,
    )
    if settings.of(ExecutorSettings).endpoint:
        return RemoteTraining(settings=settings, limits=limits, instance=instance)
    return LocalTraining(runner=runner, limits=limits)
