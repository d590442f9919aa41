"""`compilewatch papers run`: papers through the stages, each stored before the next one begins.

Nothing is kept in memory only. A stage whose result is in the journal under the same key is not
repeated, and a call whose reply is in the ledger is not sent again, so that a run that was killed
continues where it was.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from compilewatch.config import Settings
from compilewatch.errors import SourceError, UsageError
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.papers import PaperLibrary, Prompt, Provider, calls, checks, execution
from compilewatch.extras.papers.libraries import read_text
from compilewatch.extras.papers.records import (
    REPAIRABLE,
    CodeVersion,
    FindingClass,
    FoundError,
    ModelCall,
    Paper,
    PaperFinding,
    PaperPlan,
    PaperSummary,
    PaperText,
    PipelineStage,
    Review,
    StageOutcome,
    StageResult,
    finding_of,
    not_run,
)
from compilewatch.extras.papers.store import PaperFolder, PaperStore, summarise_paper
from compilewatch.plan import check_targets, targets_of
from compilewatch.records import Mode, Record, digest, now
from compilewatch.report.wording import plural

Item = TypeVar("Item")
Result = TypeVar("Result")
Content = TypeVar("Content")

Observer = Callable[[StageResult], None]


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> tuple[Result, ...]:
    """The results of `work` in the order of the items, of which `jobs` are worked on at a time.

    The first error is raised once the items in work have ended; no other is begun. The threads do
    not keep the process alive: after Ctrl-C it ends at once, so what they do must be stored as it
    is done.
    """
    if jobs <= 1 or len(items) <= 1:
        return tuple(map(work, items))
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    waiting = iter(list(enumerate(items)))  # a step of it is one step of the interpreter

    def loop() -> None:
        for number, item in waiting:
            if errors:
                return
            try:
                results[number] = work(item)
            except BaseException as error:  # noqa: BLE001  (raised again below)
                errors.append(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(min(jobs, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return tuple(results[number] for number in range(len(items)))


class _StoppedError(Exception):
    """No further stage of this paper can run."""


@dataclass(kw_only=True)
class Pipeline:
    """What all papers of a run share. With `until` = `generate`, no code is run or reviewed."""

    store: PaperStore
    library: PaperLibrary
    caller: calls.Caller
    runner: execution.SandboxRunner
    sweeper: execution.Sweeper
    trainer: execution.Trainer
    max_paper_tokens: int
    observer: Observer = lambda _: None
    until: PipelineStage = PipelineStage.EXECUTE

    def run(self, papers: Sequence[Paper], jobs: int = 1) -> tuple[PaperSummary, ...]:
        """Process papers, so many at a time, and return their summaries in the same order."""
        return in_threads(self.process, papers, jobs)

    def process(self, paper: Paper) -> PaperSummary:
        """Process one paper. What is wrong with it is in its summary."""
        work = PaperWork(self, paper, self.store.folder(paper.id))
        with contextlib.suppress(_StoppedError):
            work.run()
        return summarise_paper(work.lines, self.caller.ledger.entries())


class PaperWork:
    """One paper on its way through the stages, and the lines of its journal.

    `version` is the version of the code that is at work.
    """

    def __init__(self, pipeline: Pipeline, paper: Paper, folder: PaperFolder) -> None:
        self.pipeline, self.paper, self.folder = pipeline, paper, folder
        self.lines = list(folder.journal())
        self.version: CodeVersion | None = None

    def run(self) -> None:
        """Run the stages. Raises _StoppedError where no later one can."""
        self._find()
        text = self._read()
        plan = self._plan(text)
        rules = self.pipeline.caller.rules
        prompt = calls.generate_prompt(self.paper, text, plan, rules)
        generation = self._generate(prompt, text, digest(plan), None)
        if self.pipeline.until is PipelineStage.GENERATE:
            return
        repairs = self.pipeline.caller.budget.max_repairs
        while True:
            findings = self._check(generation, plan)
            wrong = [finding for finding in findings if finding.kind in REPAIRABLE]
            if not wrong or generation.number >= repairs:
                break
            prompt = calls.repair_prompt(self.paper, plan, rules, generation, wrong)
            repaired = self._generate(prompt, text, generation.id, generation)
            if repaired.id == generation.id:
                break  # the model has nothing better
            generation = repaired
        if all(finding.stage is PipelineStage.SWEEP for finding in findings):
            self._execute(generation)

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
        """Store what a stage showed, unless its newest line says the same."""
        of_code = result.stage not in (PipelineStage.FIND, PipelineStage.READ, PipelineStage.PLAN)
        version = self.version if of_code else None
        result = msgspec.structs.replace(
            result,
            paper=self.paper.id,
            key=key,
            outcome=StageOutcome.FAILED if result.findings else result.outcome,
            at=now(),
            generation=version.id if version else None,
            # JSON has no NaN: one would make the line unreadable.
            numbers={n: value for n, value in result.numbers.items() if math.isfinite(value)},
            scripted=result.scripted or (version.scripted if version else False),
        )
        last = next((line for line in reversed(self.lines) if line.stage is result.stage), None)
        if last is not None and not result.is_lasting and _says_the_same(last, result):
            result = last
        else:
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

    def _skip(self, stage: PipelineStage, generation: CodeVersion, why: str) -> None:
        self.add(f"{generation.id}-not-run", not_run(stage, why))

    # --- stages without generated code ---

    def _find(self) -> None:
        stage = PipelineStage.FIND
        self._once(
            stage,
            digest(msgspec.structs.replace(self.paper, ingested_at="")),
            partial(self.folder.write_record, stage, self.paper, what="paper"),
            labels={"title": self.paper.title[:200], "library": self.paper.library},
            detail=self.paper.location,
        )

    def _read(self) -> PaperText:
        stage, limit = PipelineStage.READ, self.pipeline.max_paper_tokens
        try:
            text = read_text(self.pipeline.library.fetch(self.paper), max_tokens=limit)
        except SourceError as error:
            finding = finding_of(FindingClass.UNREADABLE, stage, str(error))
            self._once(stage, digest([self.paper.location, str(error)]), findings=(finding,))
            raise _StoppedError from None
        left = text.left_out_characters
        detail = f"{text.format}, {text.tokens:,} tokens"
        self._once(
            stage,
            digest([text.raw_sha256, text.sha256]),
            partial(self.folder.write, stage, text.text.encode(), ".txt", what="text"),
            detail=detail + (f", {left:,} characters left out" if left else ""),
            numbers={"tokens": float(text.tokens), "left_out_characters": float(left)},
            labels={n: getattr(text, n) for n in ("format", "raw_sha256", "sha256")},
        )
        return text

    def _plan(self, text: PaperText) -> PaperPlan:
        stage = PipelineStage.PLAN
        prompt = calls.plan_prompt(self.paper, text, self.pipeline.caller.rules)
        plan, call, key = self._reply(calls.plan_of, prompt, stage, text.raw_sha256)
        used, sentence = calls.offline(plan.dataset)
        self._once(
            stage,
            key,
            partial(self.folder.write_record, stage, plan, what="plan"),
            detail=f"{plural(len(plan.claims), 'claim')}; dataset: {sentence}",
            labels={"dataset": used, "recommended_dataset": plan.dataset},
            scripted=call.scripted,
        )
        return plan

    def _generate(
        self, prompt: Prompt, text: PaperText, parent: str, earlier: CodeVersion | None
    ) -> CodeVersion:
        stage = PipelineStage.GENERATE
        (source, bindings), call, key = self._reply(calls.code_of, prompt, stage, parent)
        self.version = version = CodeVersion(
            id=digest(source),
            paper=self.paper.id,
            source=source,
            number=earlier.number + 1 if earlier else 0,
            model=call.model,
            call=call.key,
            prompt_sha256=digest([prompt.system, prompt.text]),
            rules_sha256=self.pipeline.caller.rules.sha256,
            paper_sha256=text.raw_sha256,
            parent=earlier.id if earlier else None,
            bindings=bindings,
            scripted=call.scripted,
            created_at=call.at,
        )
        short, lines = f"v{version.number}_{version.id[:12]}", len(source.splitlines())
        self._once(
            stage,
            key,
            partial(self.folder.write, stage, source.encode(), ".py", what=short),
            partial(self.folder.write_record, stage, version, what=short),
            detail=f"version {version.number}, {lines} lines, {version.id[:12]}",
            numbers={"version": float(version.number), "lines": float(lines)},
        )
        return version

    # --- the checks of one version ---

    def _check(self, generation: CodeVersion, plan: PaperPlan) -> tuple[PaperFinding, ...]:
        """The findings of a version. A stage that fails keeps the later ones from running."""
        key = digest([generation.id, checks.SOURCE_VERSION])
        findings = checks.check_source(generation.source)
        detail = "" if findings else "no finding"
        result = self._once(PipelineStage.STATIC, key, findings=findings, detail=detail)
        if result.findings:
            return result.findings
        review, result = self._review(generation, plan)
        if result.findings:
            return result.findings
        eager, formulas = self._run_eager(generation, plan)
        if eager.findings:
            return eager.findings
        faithful = self._compare(generation, plan, review, formulas)
        if faithful.findings or eager.not_run:
            if eager.not_run:
                self._skip(PipelineStage.SWEEP, generation, eager.not_run)
            return faithful.findings
        return self._checked(PipelineStage.SWEEP, self.pipeline.sweeper, generation).findings

    def _review(self, generation: CodeVersion, plan: PaperPlan) -> tuple[Review, StageResult]:
        """The review of a version. Without a valid review nothing is approved or run."""
        stage = PipelineStage.REVIEW
        prompt = calls.review_prompt(self.paper, plan, self.pipeline.caller.rules, generation)
        review, _, key = self._reply(calls.review_of, prompt, stage, generation.id)
        serious = [issue for issue in review.issues if issue.severity != "minor"]
        findings = [
            finding_of(FindingClass.NOT_APPROVED, stage, issue.statement, issue.line)
            for issue in serious
        ]
        if not review.approved and not findings:
            evidence = "the review does not approve this version"
            findings.append(finding_of(FindingClass.NOT_APPROVED, stage, evidence))
        minor = plural(len(review.issues) - len(serious), "minor issue")
        return review, self._once(
            stage,
            key,
            partial(self.folder.write_record, stage, review, what="review"),
            findings=tuple(findings),
            detail="" if findings else f"approved, {minor}",
        )

    def _run_eager(
        self, generation: CodeVersion, plan: PaperPlan
    ) -> tuple[StageResult, StageResult]:
        """Run the code, which the formulas need too, unless both results are in the journal."""
        stage = PipelineStage.EAGER
        key = digest([generation.id, digest(plan), "eager", 3])
        if (known := self.known(stage, key)) is not None:
            stored = msgspec.json.decode(self.folder.read(known.files[0]), type=_EagerFile)
            return known, stored.formulas
        eager, formulas = execution.run_eager(self.pipeline.runner, generation, plan)
        if not eager.not_run:
            both = _EagerFile(eager=eager, formulas=formulas)
            name = self.folder.write_record(stage, both, what="eager")
            eager = msgspec.structs.replace(eager, files=(name,))
        return self.add(key, eager), formulas

    def _compare(
        self, generation: CodeVersion, plan: PaperPlan, review: Review, formulas: StageResult
    ) -> StageResult:
        """Whether the code contains the paper's contribution."""
        stage = PipelineStage.FAITHFUL
        key = digest([generation.id, digest(plan), digest(review), checks.FAITHFUL_VERSION])
        findings = (
            *checks.check_structure(generation.source, plan),
            *checks.check_rubric(generation.source, plan, review),
            *formulas.findings,
        )
        claims = f"{plural(len(plan.claims), 'claim')} in structure and review"
        if formulas.not_run and not findings:
            why = f"{claims}; formulas were not computed: {formulas.not_run}"
            return self.known(stage, key) or self.add(key, not_run(stage, why))
        detail = f"{claims}; {'' if formulas.not_run else formulas.detail}"
        return self._once(stage, key, findings=findings, detail=detail, numbers=formulas.numbers)

    def _execute(self, generation: CodeVersion) -> None:
        last = {result.stage: result for result in self.lines}
        eager = last.get(PipelineStage.EAGER)
        if eager is None or eager.outcome is not StageOutcome.PASSED:
            why = eager.detail if eager is not None else "the code was not run in eager mode"
            self._skip(PipelineStage.EXECUTE, generation, why)
            return
        self._checked(PipelineStage.EXECUTE, self.pipeline.trainer, generation)

    def _checked(
        self,
        stage: PipelineStage,
        checker: execution.Sweeper | execution.Trainer,
        generation: CodeVersion,
    ) -> StageResult:
        """The result of a stage that runs generated code in the sandbox."""
        key = digest([generation.id, checker.identity])
        return self.known(stage, key) or self.add(key, checker.run(generation, self.folder))

    # --- calls ---

    def _reply(
        self,
        read: Callable[[ModelCall], Content],
        prompt: Prompt,
        stage: PipelineStage,
        parent: str,
    ) -> tuple[Content, ModelCall, str]:
        """What `read` returns for the reply to a prompt, the call and its key."""
        caller = self.pipeline.caller
        key = caller.key(prompt, parent)
        try:
            call = caller.call(prompt, stage=stage, parent=parent)
            return read(call), call, key
        except FoundError as error:
            self._once(error.finding.stage, key, findings=(error.finding,))
            raise _StoppedError from None


def _says_the_same(last: StageResult, result: StageResult) -> bool:
    same = msgspec.structs.replace(last, at=result.at, files=result.files, numbers=result.numbers)
    return same == result


class _EagerFile(Record, frozen=True, kw_only=True):
    eager: StageResult
    formulas: StageResult


def run_papers(
    settings: Settings,
    library: PaperLibrary,
    provider: Provider,
    papers: Sequence[Paper],
    budget: calls.Budget,
    *,
    targets: tuple[str, ...] = ("dynamo", "export"),
    environments: tuple[str, ...] = ("default",),
    named: tuple[str, ...] = (),
    max_device_seconds: float | None = None,
    jobs: int = 1,
    trainium: bool = False,
    state: Path | None = None,
    until: PipelineStage = PipelineStage.EXECUTE,
    observer: Observer = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[PaperSummary, ...]:
    """Process papers and return their summaries. Only one run writes to a folder at a time.

    Args:
        targets: compile targets of the sweep.
        environments: those that exist for the targets.
        named: environments in each of which every target runs; empty: each target's default one.
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
    runner = execution.SandboxRunner()
    seconds = own.device_seconds
    if max_device_seconds is not None:
        seconds = min(seconds, max_device_seconds)
    with contextlib.ExitStack() as stack:
        stack.callback(provider.close)
        stack.enter_context(store.locked())
        used = sum(execution.seconds_of(store.folder(paper.id).journal()) for paper in papers)
        caller = calls.Caller(
            ledger=store.ledger,
            provider=provider,
            rules=calls.load_rules(Path(own.rules_file)),
            price=calls.price_of(Path(own.prices_file), provider.model),
            budget=budget,
            papers=frozenset(paper.id for paper in papers),
            run=now(),
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
        launcher = execution.SandboxLauncher(1, environments, cache=settings.cache_folder)
        limits = SandboxLimits(
            deadline_seconds=seconds,
            memory_bytes=settings.memory_limit_bytes,
            disk_bytes=256 * MIB,
        )
        pipeline = Pipeline(
            store=store,
            library=library,
            caller=caller,
            runner=runner,
            sweeper=execution.Sweeper(
                settings=settings, targets=targets, launcher=launcher, named=named
            ),
            trainer=execution.Trainer(
                settings=settings,
                limits=limits,
                runner=runner,
                start_instance=start,
                max_seconds=max_device_seconds,
                used_seconds=used,
            ),
            max_paper_tokens=own.max_paper_tokens,
            observer=observer,
            until=until,
        )
        return pipeline.run(papers, jobs)
