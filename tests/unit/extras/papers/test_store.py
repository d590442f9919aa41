"""What is stored of papers: lines that were cut off or damaged cost themselves only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compilewatch.extras.papers.records import CallState, ModelCall, PipelineStage, StageResult
from compilewatch.extras.papers.store import JOURNAL, PaperStore

TORN = b'{"paper": "2401'


def stage(name: PipelineStage) -> StageResult:
    return StageResult(paper="2401.1", stage=name)


def call(key: str) -> ModelCall:
    empty: dict[str, Any] = dict.fromkeys(("role", "provider", "model", "at"), "")
    return ModelCall(entry=0, key=key, state=CallState.STARTED, paper="2401.1", **empty)


def test_a_torn_line_of_a_journal_is_left_out_and_the_next_is_kept(tmp_path: Path) -> None:
    store = PaperStore(tmp_path)
    folder = store.folder("2401.1")
    folder.append(stage(PipelineStage.FIND))
    assert store.damaged() == ()
    path = folder.path / JOURNAL
    path.write_bytes(path.read_bytes() + TORN)
    assert [line.stage for line in folder.journal()] == [PipelineStage.FIND]
    assert store.damaged() == (f"{path}:2: incomplete last line left out",)
    folder.append(stage(PipelineStage.READ))
    assert [line.stage for line in folder.journal()] == [PipelineStage.FIND, PipelineStage.READ]
    (note,) = store.damaged()
    assert note.startswith(f"{path}:2: damaged line left out")


def test_a_journal_whose_first_line_is_torn_still_names_its_paper(tmp_path: Path) -> None:
    store = PaperStore(tmp_path)
    folder = store.folder("2401.1")
    folder.path.mkdir(parents=True)
    (folder.path / JOURNAL).write_bytes(TORN)
    assert store.ids() == ()
    folder.append(stage(PipelineStage.FIND))
    assert store.ids() == ("2401.1",)


def test_a_torn_line_of_the_ledger_costs_no_other_entry(tmp_path: Path) -> None:
    store = PaperStore(tmp_path)
    first = store.ledger.begin(call("a"))
    path = store.ledger.path
    path.write_bytes(path.read_bytes() + b'{"entry": 2')
    second = store.ledger.begin(call("b"))
    assert (first.entry, second.entry) == (1, 2)
    assert [entry.key for entry in store.ledger.entries()] == ["a", "b"]
    assert len(store.damaged()) == 1
