"""The parts of `compilewatch papers run`: the ledger, the sandbox, the sweep and the executor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from compilewatch.config.settings import Settings
from compilewatch.errors import UsageError
from compilewatch.extras.executor.instance import OnDemand, instance_of
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.papers import PaperLibrary, Provider
from compilewatch.extras.papers.calls import Budget, Caller
from compilewatch.extras.papers.execution import CodeRunner, SandboxRunner
from compilewatch.extras.papers.journal import Observer
from compilewatch.extras.papers.launcher import ConfinedLauncher
from compilewatch.extras.papers.pipeline import Pipeline
from compilewatch.extras.papers.prices import price_of
from compilewatch.extras.papers.records import Paper, PaperSummary, PipelineStage
from compilewatch.extras.papers.rules import load_rules
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.store import PaperStore
from compilewatch.extras.papers.sweep import Sweeper
from compilewatch.extras.papers.training import (
    DeviceTime,
    LimitedTraining,
    LocalTraining,
    RemoteTraining,
    Training,
    client_of,
    seconds_of,
)
from compilewatch.plan.requests import check_targets, targets_of
from compilewatch.records import Mode
from compilewatch.records.clock import now


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
    check_targets(targets_of(options.targets, [Mode.EVAL], False))
    if options.trainium and not settings.of(ExecutorSettings).endpoint:
        raise UsageError("--trainium needs the address of its executor: set TRAINIUM_ENDPOINT")
    own = settings.of(PapersSettings)
    store = PaperStore(Path(settings.output_dir))
    chosen = runner or SandboxRunner()
    with contextlib.ExitStack() as held:
        held.callback(provider.close)
        held.enter_context(store.locked())
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
        instance = _instance(settings, options, held, say) if options.trainium else None
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
    held: contextlib.ExitStack,
    say: Callable[[str], None],
) -> OnDemand:
    client = held.enter_context(client_of(settings))
    make = partial(instance_of, settings, client, say, options.state)
    return held.enter_context(OnDemand(make))


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
