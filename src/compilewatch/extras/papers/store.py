"""`outputs/papers/`: files of papers, their journals, and the ledger of calls to models.

Files of a paper are written once and never changed. The journal of a paper and the ledger are
append-only and synced, so that a process that is killed loses no line that was written.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.errors import StoreError, UsageError, did_you_mean
from compilewatch.extras.papers import records as kinds
from compilewatch.extras.papers.records import ModelCall, PipelineStage, StageResult
from compilewatch.files import (
    explained,
    lock,
    read_if_there,
    safe_name,
    sync_folder,
    write_atomically,
)
from compilewatch.records import SCHEMA_VERSION, Record
from compilewatch.store.journal import append_record, read_records

FOLDERS: dict[PipelineStage, str] = {
    PipelineStage.FIND: "paper-retrieval",
    PipelineStage.READ: "paper-retrieval",
    PipelineStage.PLAN: "code-generation",
    PipelineStage.GENERATE: "code-generation",
    PipelineStage.STATIC: "code-review",
    PipelineStage.REVIEW: "code-review",
    PipelineStage.FAITHFUL: "code-review",
    PipelineStage.EAGER: "trn-execution",
    PipelineStage.SWEEP: "metrics",
    PipelineStage.EXECUTE: "trn-execution",
}
"""Stage -> the folder of its files below the paper's folder."""

PROFILER_FOLDER = "profiler_results"
JOURNAL = "journal.jsonl"
LEDGER = "ledger.jsonl"


class PaperStore:
    """`outputs/papers/`. Raises StoreError. Nothing is created before the first write."""

    def __init__(self, outputs: Path) -> None:
        self.root = outputs.absolute() / "papers"

    def ids(self) -> tuple[str, ...]:
        """The ids of all papers with a journal, sorted."""
        files: list[Path] = []
        with explained("read", self.root), contextlib.suppress(FileNotFoundError):
            files += (path / JOURNAL for path in self.root.iterdir() if (path / JOURNAL).is_file())
        journals = (_journal(file)[0] for file in files)
        return tuple(sorted(journal[0].paper for journal in journals if journal))

    def folder(self, paper: str) -> PaperFolder:
        """The folder of a paper, whether it exists or not."""
        return PaperFolder(self.root / safe_name(paper), paper)

    def known(self, paper: str) -> PaperFolder:
        """The folder of a stored paper. Raises UsageError if there is none."""
        folder = self.folder(paper)
        if not (folder.path / JOURNAL).is_file():
            hint = did_you_mean(paper, self.ids()) or "; see `compilewatch papers list`"
            raise UsageError(f"no paper {paper!r} in {self.root}{hint}")
        return folder

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.root / LEDGER)

    def summaries(self) -> tuple[kinds.PaperSummary, ...]:
        """The summaries of all stored papers, sorted by id."""
        entries = self.ledger.entries()
        return tuple(summarise_paper(self.folder(name).journal(), entries) for name in self.ids())

    def damaged(self) -> tuple[str, ...]:
        """One line for each line of the ledger and of a journal that cannot be read."""
        calls = read_records(self.root / LEDGER, ModelCall)[1]
        stages = (_journal(path)[1] for path in sorted(self.root.glob(f"*/{JOURNAL}")))
        return tuple(itertools.chain(calls, *stages))

    def write_report(self, name: str, data: bytes) -> None:
        """Replace a file of the report."""
        write_atomically(self.root / "report" / name, data, durable=False)

    def published(self, sink: str) -> frozenset[str]:
        """The keys of what a sink has accepted."""
        path = self.root / "published" / f"{sink}.txt"
        return frozenset((read_if_there(path) or b"").decode().splitlines())

    def add_published(self, sink: str, keys: Iterable[str]) -> None:
        """Remember what a sink has accepted, durably."""
        known = sorted({*self.published(sink), *keys})
        path = self.root / "published" / f"{sink}.txt"
        write_atomically(path, "".join(f"{key}\n" for key in known).encode())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one run. Raises StoreError if another run holds it."""
        path = self.root / ".lock"
        with explained("write", path):
            self.root.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        with file:
            if not lock(file.fileno(), seconds=0.0):
                raise StoreError(
                    f"another `papers run` writes to {self.root}: wait for it, or choose another "
                    "folder with --output"
                )
            yield


class PaperFolder:
    """The files and the journal of one paper."""

    def __init__(self, path: Path, paper: str) -> None:
        self.path = path
        self.paper = paper

    def write(self, stage: PipelineStage, data: bytes, suffix: str, *, what: str = "") -> str:
        """Write a new file of a stage and return its path relative to the folder."""
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        part = f"_{what}" if what else ""
        name = f"{safe_name(self.paper)}_{stamp}{part}{suffix}"
        return self.write_named(f"{FOLDERS[stage]}/{name}", data)

    def write_named(self, name: str, data: bytes) -> str:
        """Write a file by its relative path, which it returns; one that exists stays as it is.

        The file is complete and on disk before the name exists, and is read-only.
        """
        path = self.path / name
        if not path.exists():
            write_atomically(path, data)
            with explained("write", path):
                path.chmod(0o444)
                sync_folder(path.parent)
        return name

    def write_record(self, stage: PipelineStage, record: Any, *, what: str = "") -> str:
        """Write a record, or fields by name, as a JSON file of a stage."""
        fields = {"schema_version": SCHEMA_VERSION, **msgspec.to_builtins(record)}
        data = msgspec.json.format(msgspec.json.encode(fields), indent=2)
        return self.write(stage, data + b"\n", ".json", what=what)

    def read(self, name: str) -> bytes:
        """Read a file that the journal names."""
        with explained("read", self.path / name):
            return (self.path / name).read_bytes()

    def journal(self) -> tuple[StageResult, ...]:
        """All stage results, oldest first."""
        return _journal(self.path / JOURNAL)[0]

    def append(self, result: StageResult) -> None:
        """Append a stage result, durably."""
        _append(self.path / JOURNAL, result)

    def version(self, number: int | None = None) -> tuple[kinds.CodeVersion, Path]:
        """A version of the code (the last one by default) and its file.

        Raises UsageError if there is none.
        """
        stage = PipelineStage.GENERATE
        lines = [r for r in self.journal() if r.stage is stage and r.generation and r.files]
        chosen = [r for r in lines if number is None or r.numbers.get("version") == number]
        if not chosen:
            missing = f"version {number}" if lines else "code"
            raise UsageError(f"{self.paper} has no {missing}: see `compilewatch papers check`")
        module, about = sorted(chosen[-1].files, key=lambda name: not name.endswith(".py"))
        return msgspec.json.decode(self.read(about), type=kinds.CodeVersion), self.path / module

    def findings(self, version: kinds.CodeVersion) -> tuple[kinds.PaperFinding, ...]:
        """What the newest result of each stage found in a version."""
        newest = {r.stage: r for r in self.journal() if r.generation == version.id}
        return tuple(finding for result in newest.values() for finding in result.findings)


class Ledger:
    """The ledger: two lines for each request to a model, one before it and one after it.

    Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = list(read_records(path, ModelCall)[0])
        self._lock = threading.Lock()

    def entries(self) -> tuple[ModelCall, ...]:
        """The newest line of each entry, in order."""
        with self._lock:
            return tuple({line.entry: line for line in self._lines}.values())

    def finished(self, key: str) -> ModelCall | None:
        """The finished call with this key, which need not be made again."""
        finished = (line for line in self.entries() if line.state is kinds.CallState.FINISHED)
        return next((line for line in finished if line.key == key), None)

    def begin(self, call: ModelCall) -> ModelCall:
        """Append a line `started` and return it with its number; then the request may be sent."""
        with self._lock:
            number = max((line.entry for line in self._lines), default=0) + 1
            begun = msgspec.structs.replace(call, entry=number, state=kinds.CallState.STARTED)
            return self._written(begun)

    def end(self, call: ModelCall) -> ModelCall:
        """Append the line that ends an entry."""
        with self._lock:
            return self._written(call)

    def _written(self, call: ModelCall) -> ModelCall:
        _append(self.path, call)
        self._lines.append(call)
        return call


def _journal(path: Path) -> tuple[tuple[StageResult, ...], tuple[str, ...]]:
    """The lines of a journal, and a note for each that cannot be read."""
    return read_records(path, StageResult)


def _append(path: Path, record: Record) -> None:
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    append_record(path, record)


def summarise_paper(
    journal: Sequence[StageResult], entries: Iterable[ModelCall]
) -> kinds.PaperSummary:
    """The summary of a paper whose journal has at least one line.

    Only results of the last version of the code count; a stage without one was not run. A request
    that has not ended may have been paid for: it counts with the most that it can cost.
    """
    paper = journal[0].paper
    last = {result.stage: result for result in journal}
    generated = last.get(PipelineStage.GENERATE)
    generation = generated.generation if generated else None
    stages: list[StageResult] = []
    why = "not reached"
    for stage in PipelineStage:
        result = last.get(stage)
        if result is not None and result.generation in (None, generation):
            stages.append(result)
        else:
            stages.append(msgspec.structs.replace(kinds.not_run(stage, why), paper=paper))
        if result is not None and result.outcome is kinds.StageOutcome.FAILED:
            why = f"not reached: {stage} failed"
    outcomes = {stage.outcome for stage in stages}
    state = "incomplete" if kinds.StageOutcome.NOT_RUN in outcomes else "passed"
    versions = [r for r in journal if r.stage is PipelineStage.GENERATE]
    numbers = [r.numbers.get("version", 0.0) for r in versions if r.generation == generation]
    earlier = (one for one in journal if one.generation not in (None, generation))
    calls = [entry for entry in entries if entry.paper == paper]
    labels = {stage: result.labels for stage, result in last.items()}
    return kinds.PaperSummary(
        paper=paper,
        title=labels.get(PipelineStage.FIND, {}).get("title", paper),
        state="failed" if kinds.StageOutcome.FAILED in outcomes else state,
        stages=tuple(stages),
        findings=tuple(finding for stage in stages for finding in stage.findings),
        generation=generation,
        repairs=int(numbers[-1]) if numbers else 0,
        spent=summarise_spent(calls),
        scripted=any(result.scripted for result in journal),
        model=calls[-1].model if calls else "",
        dataset=labels.get(PipelineStage.PLAN, {}).get("dataset", ""),
        repaired=tuple(dict.fromkeys(finding for one in earlier for finding in one.findings)),
    )


def summarise_spent(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Sums over requests; one that has not ended counts with the most that it can use."""
    return {
        "requests": len(calls),
        "finished": sum(e.state is kinds.CallState.FINISHED for e in calls),
        "unfinished": sum(e.state is kinds.CallState.STARTED for e in calls),
        "usd": sum((e.usd or 0.0 for e in calls), 0.0),
        "unpriced": sum(e.usd is None for e in calls),
        "input_tokens": sum(e.input_tokens for e in calls),
        "output_tokens": sum(e.output_tokens for e in calls),
    }


def funnel(summaries: Sequence[kinds.PaperSummary]) -> dict[str, Any]:
    """How many papers passed each stage, what was wrong with the others, and the sums.

    `usd_per_success` is US dollars per paper that passed every stage; None if none did.
    """
    classes = Counter(kind for one in summaries for kind in {f.kind.value for f in one.findings})
    states = Counter(one.state for one in summaries)
    spent = summarise_spent(())
    sums = {name: sum((one.spent[name] for one in summaries), zero) for name, zero in spent.items()}
    return {
        "papers": len(summaries),
        "passed": {
            stage: sum(one.stages[number].outcome is kinds.StageOutcome.PASSED for one in summaries)
            for number, stage in enumerate(PipelineStage)
        },
        "findings": dict(sorted(classes.items())),
        "states": dict(sorted(states.items())),
        "spent": sums,
        "scripted": any(one.scripted for one in summaries),
        "usd_per_success": sums["usd"] / states["passed"] if states["passed"] else None,
    }
