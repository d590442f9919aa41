"""A minimal reproducer of a worker that answers here, and the duplicates of an issue."""

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.environments import Environments
from compilewatch.errors import InputsError
from compilewatch.extras.fixes import minimal_reproducer
from compilewatch.extras.fixes.records import MinimalReproducer
from compilewatch.records import Plan, Status
from compilewatch.store import Store
from tests import factories

BREAK = factories.graph_break()


def write(
    monkeypatch: pytest.MonkeyPatch, folder: Path, answer: MinimalReproducer | str, **options: Any
) -> tuple[str, str]:
    """What is written for what a worker answers."""
    ended = subprocess.CompletedProcess([], 1, b"", str(answer).encode())
    if not isinstance(answer, str):
        ended = subprocess.CompletedProcess([], 0, msgspec.json.encode(answer), b"")
    monkeypatch.setattr(minimal_reproducer, "oneshot", lambda *_: ended)
    options = {"at": None, "issue": False, "outputs": folder} | options
    return minimal_reproducer.write(Environments(folder), factories.request(), **options)


def test_a_failure_is_one_line_and_a_draft_names_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, message in (
        (MinimalReproducer(text="", note="not reached", fingerprint=""), r"^not reached$"),
        ("Traceback\nno graph break occurs", r"^BertModel: no graph break occurs$"),
    ):
        with pytest.raises(InputsError, match=message):
            write(monkeypatch, tmp_path, answer)
    made = MinimalReproducer(text="# A\n", note="2 lines", fingerprint=BREAK.fingerprint)
    assert write(monkeypatch, tmp_path, made) == ("# A\n", "2 lines")
    text, _ = write(monkeypatch, tmp_path, made, issue=True)
    assert text.startswith("# A\n\n## Stored duplicates\n\nNo stored run has another graph break")
    plan = Plan(requests=(factories.request(),), skipped=(), digest="")
    with Store(tmp_path).create_run(factories.run(), plan) as writer:
        results = {f"M{n}": (BREAK,) for n in range(7)} | {"M": (factories.graph_break("other"),)}
        writer.append([factories.result(n, Status.GRAPH_BREAK, b) for n, b in results.items()])
        run = writer.finish("finished")
    text, _ = write(monkeypatch, tmp_path, made, issue=True)
    assert text.endswith(f"\n\n- run {run.id}: 7 models: M0, M1, M2, M3, M4 and 2 more\n")
