"""Services that misbehave: every publication ends, and the run waits in the spool."""

import threading
from pathlib import Path
from typing import Any

import pytest

from compilewatch.api.publish import Published, load_sinks, publish, view
from tests import aws, factories
from tests.doubles.misbehaving import FAULTS, Fault, misbehaving, silence
from tests.sweeping import run_sweep, store

TIMEOUT_SECONDS = 0.5
LATEST_SECONDS = 30.0
"""Beyond this, a publication has no end. It is generous: only then does a slow machine fail."""

CASES = [
    pytest.param(f, "http", id=f.__name__, marks=() if f is silence else pytest.mark.matrix)
    for f in FAULTS
] + [pytest.param(silence, "https", id="slow_tls", marks=pytest.mark.matrix)]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    run_sweep(folder)
    return folder


def published(outputs: Path, sink: str, **given: Any) -> Published:
    """Publish the stored run in a thread; a test fails where that does not end."""
    settings = factories.settings(
        **{"publish_timeout_seconds": TIMEOUT_SECONDS, "publish_retry_seconds": 0.0, **given}
    )
    runs = store(outputs)
    seen = view(runs, runs.open())
    done: list[Published] = []
    thread = threading.Thread(
        target=lambda: done.append(publish(runs, seen, load_sinks([sink], settings))), daemon=True
    )
    thread.start()
    thread.join(LATEST_SECONDS)
    assert done, "the publication has not ended"
    return done[0]


@pytest.mark.parametrize("sink", ["pushgateway", "loki", "s3"])
@pytest.mark.parametrize(("fault", "scheme"), CASES)
def test_a_publication_ends_and_the_run_waits(
    outputs: Path,
    sink: str,
    fault: Fault,
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws.no_configuration(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    with misbehaving(fault) as server:
        address = f"{scheme}://{server}"
        s3 = {"s3_url": "s3://runs", "s3_endpoint_url": address}
        given: dict[str, Any] = s3 if sink == "s3" else {f"{sink}_url": address}
        result = published(outputs, sink, **given)
    assert result.lines == ()
    ((failed, why),) = result.failures
    assert failed == sink
    assert "\n" not in why
    assert len(why) < 700
    run = store(outputs).open().run.id
    assert f"kept in the spool; the next publish sends it, or: compilewatch publish {run}" in why
    assert [waiting.run for waiting in store(outputs).spool.waiting(sink)] == [run]
    store(outputs).spool.drop(sink, run)
