"""The stored jobs: what is acknowledged stays, and every job ends once; prices of instances."""

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from compilewatch import data
from compilewatch.errors import ExecutorError
from compilewatch.extras.executor import jobs, protocol
from compilewatch.extras.executor.jobs import MOST_ATTEMPTS, JobStore
from compilewatch.extras.executor.protocol import JobRequest, JobResult, JobState, JobStatus
from compilewatch.extras.executor.sandbox.policy import SandboxEnding
from compilewatch.extras.executor.trainium import price_of

DONE = JobResult(ending=SandboxEnding.EXITED, exit_code=0)
ABORTED = JobResult(ending=SandboxEnding.EXITED, signal=6)


def request(text: str = "pass") -> JobRequest:
    return JobRequest(files={"main.py": text})


def claimed(store: JobStore) -> JobState:
    claim = store.claim()
    assert claim is not None
    return claim[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    job_store = JobStore(tmp_path / "state")
    yield job_store
    job_store.close()


def test_jobs_run_in_the_order_of_their_submission_also_under_the_next_service(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(jobs, "MOST_QUEUED", 3)
    for key in ("b", "a", "c"):
        store.submit(key, request(key))
    with pytest.raises(HTTPException) as caught:
        store.submit("d", request("d"))
    assert caught.value.status_code == 429
    assert [claimed(store).key for _ in range(2)] == ["b", "a"]
    with pytest.raises(ExecutorError, match="another executor uses"):
        JobStore(store.folder)
    store.close()
    again = JobStore(store.folder)
    assert [state.key for state in again.running()] == ["b", "a"]
    assert claimed(again).key == "c"
    assert again.claim() is None
    assert again.counts() == (3, 0)
    again.close()


def test_a_job_ends_once(store: JobStore) -> None:
    store.submit("a", request())
    state = claimed(store)
    assert store.settle(state, DONE).state is JobStatus.DONE
    assert store.settle(state, ABORTED).state is JobStatus.DONE
    assert store.settle(state).state is JobStatus.DONE
    assert store.cancel("a").state is JobStatus.DONE


def test_an_interrupted_job_waits_again_until_it_is_lost(store: JobStore) -> None:
    store.submit("a", request())
    for attempt in range(1, MOST_ATTEMPTS):
        state = claimed(store)
        assert state.attempt == attempt
        assert store.settle(state).state is JobStatus.QUEUED
    lost = store.settle(claimed(store))
    assert (lost.state, lost.result) == (JobStatus.LOST, None)


def test_only_the_end_of_the_last_attempt_counts_and_a_cancelled_job_has_no_other(
    store: JobStore,
) -> None:
    store.submit("a", request())
    first = claimed(store)
    store.settle(first)
    second = claimed(store)
    assert store.settle(first, DONE) == second
    assert store.settle(first) == second
    assert store.cancel("a").state is JobStatus.RUNNING
    assert store.settle(second).state is JobStatus.CANCELLED


def test_jobs_that_ended_long_ago_are_forgotten_with_their_files(store: JobStore) -> None:
    for key in ("old", "waits"):
        store.submit(key, request(key))
    state = claimed(store)
    store.attempt_folder(state).mkdir(parents=True)
    assert store.prune("9999") == ()
    store.settle(state, DONE)
    assert store.prune("2000") == ()
    assert store.prune("9999") == ("old",)
    assert not store.attempt_folder(state).parent.exists()
    assert [state.key for state in store.newest(10)] == ["waits"]


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(ExecutorError, match=r"jobs\.sqlite cannot be used"):
        JobStore(tmp_path)


def test_a_price_of_a_project_applies_before_the_reviewed_ones(tmp_path: Path) -> None:
    reviewed = data.TRAINIUM_PRICES
    for row in tomllib.loads(reviewed.read_text())["price"]:
        prices = [price_of(reviewed, row["instance_type"], region) for region in row["regions"]]
        assert None not in prices
    assert price_of(reviewed, "trn9.metal", "us-east-1") is None
    (file := tmp_path / "prices.toml").write_text(
        'schema_version = 1\n[[price]]\ninstance_type = "trn1.2xlarge"\nregions = ["us-east-1"]\n'
        'usd_per_hour = 9.5\ndate = 2020-01-01\nsource = "a contract"\n'
    )
    price = price_of(file, "trn1.2xlarge", "us-east-1")
    assert price is not None
    assert price.usd_per_hour == 9.5
    west = ("trn1.2xlarge", "us-west-2")
    assert price_of(file, *west) == price_of(reviewed, *west)


# --- numbers out of what training code prints, which may be anything ---


def read(text: str) -> list[dict[str, float]]:
    return list(protocol.read_metrics(text.encode()))


def test_marked_lines_are_read_and_lines_for_people_where_none_is_marked() -> None:
    text = """Epoch 1/2, Loss: 0.7
Epoch [2/2] Training Loss: 3.5e-1
Validation Accuracy: 81.5%  Test Accuracy: 80%
"""
    assert read(text) == [
        {"epoch": 1.0, "training_loss": 0.7},
        {"epoch": 2.0, "training_loss": 0.35},
        {"epoch": 2.0, "validation_accuracy": 81.5, "test_accuracy": 80.0},
    ]
    marked = """METRICS: {"epoch": 1, "training_loss": 0.5}
  METRICS: {"step": 7, "test_accuracy": 0.9}
METRICS: {"training_loss": 0.25}
"""
    assert read(text + marked) == [
        {"epoch": 1.0, "training_loss": 0.5},
        {"step": 7.0, "test_accuracy": 0.9},
        {"training_loss": 0.25},
    ]


def test_what_is_not_a_finite_number_loses_itself_only() -> None:
    values = ("NaN", "1e999", "true", '"1"', "1" * protocol.MOST_LINE_BYTES)
    lines = ["nothing", "[1]", "[" * 5000, '{"a b": 1}', '{"' + "a" * 100 + '": 1}']
    for line in (*lines, *(f'{{"a": {value}}}' for value in values)):
        text = f'METRICS: {{"good": 1}}\nMETRICS: {line}\nMETRICS: {{"good": 2}}\n'
        assert read(text) == [{"good": 1.0}, {"good": 2.0}], line


def test_names_and_lines_are_bounded() -> None:
    many = "".join(f'METRICS: {{"name_{n}": 1}}\n' for n in range(protocol.MOST_NAMES + 5))
    assert len(read(many)) == protocol.MOST_NAMES
    numbered = [f'METRICS: {{"a": {n}}}\n' for n in range(protocol.MOST_LINES + 3)]
    lines = read("".join(numbered))
    assert len(lines) == protocol.MOST_LINES
    assert (lines[0], lines[-1]) == ({"a": 0.0}, {"a": protocol.MOST_LINES + 2.0})


BEGINNINGS = (b"", b"METRICS: ", b'METRICS: {"a": ', b"Epoch 1/")


@given(st.binary(max_size=300), st.sampled_from(BEGINNINGS))
def test_any_output_can_be_read(data: bytes, beginning: bytes) -> None:
    for line in protocol.read_metrics(beginning + data):
        assert all(map(math.isfinite, line.values()))
