from __future__ import annotations

from pathlib import Path

from compilewatch.records import Status
from tests.factories import request, result
from tests.fake_launcher import FakeLauncher, passing


def test_results_come_from_a_table_and_the_rest_passes(scratch: Path) -> None:
    launcher = FakeLauncher(answers={"BertModel": result("BertModel", Status.TIMEOUT)})
    asked = [request("BertModel"), request("GPT2Model")]
    answers = list(launcher.run(asked, scratch))
    assert [a.result.status for a in answers] == [Status.TIMEOUT, Status.PASS]
    assert launcher.seen == asked


def test_results_come_from_a_function(scratch: Path) -> None:
    launcher = FakeLauncher(answers=lambda asked: passing(asked))
    (answer,) = launcher.run([request("GPT2Model")], scratch)
    assert answer.result.request == request("GPT2Model")


def test_hands_over_files_of_each_result(scratch: Path) -> None:
    launcher = FakeLauncher(artifacts={"trace/log.txt": b"graph"})
    folders = [a.artifacts for a in launcher.run([request("A"), request("B")], scratch)]
    assert [(f / "trace/log.txt").read_bytes() for f in folders if f] == [b"graph", b"graph"]
    assert len(set(folders)) == 2
