"""Against moto's server: S3's protocol, checksums and all, on the loopback."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from compilewatch.config import Settings
from compilewatch.errors import ConfigError, SinkError, UnreachableError
from compilewatch.sinks import s3
from compilewatch.sinks.s3 import PART_BYTES, S3Sink, content_type
from compilewatch.store import RunFolder
from tests import aws, factories
from tests.run_folder import RUN, VIEW
from tests.sharing import free_port
from tests.sweeping import run_sweep, store

FILES = {
    "run.json": b"{}",
    "results.jsonl": b"{}\n",
    f"logs/{RUN}.jsonl": b"{}\n",
    "metrics.prom": b"# EOF\n",
    "report/index.html": b"<html>",
    "report/models/org--m.html": b"<html>",
    "artifacts/org--m/dynamo/graph.hlo_module.pb": b"\x00",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws.moto() as address:
        yield address


@pytest.fixture(autouse=True)
def _credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of whoever runs the tests is used."""
    aws.no_configuration(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def client(endpoint: str, _credentials: None) -> Iterator[Any]:
    """A client of a server with one empty bucket, `runs`."""
    made = boto3.client("s3", endpoint_url=endpoint)
    made.create_bucket(Bucket="runs")
    yield made
    for found in made.list_multipart_uploads(Bucket="runs").get("Uploads", ()):
        made.abort_multipart_upload(Bucket="runs", Key=found["Key"], UploadId=found["UploadId"])
    for found in made.list_objects_v2(Bucket="runs").get("Contents", ()):
        made.delete_object(Bucket="runs", Key=found["Key"])
    made.delete_bucket(Bucket="runs")
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    for name, data in FILES.items():
        made.write(name, data)
    return made


def sink(endpoint: str, url: str = "s3://runs/nightly", **given: Any) -> S3Sink:
    changes = {"publish_timeout_seconds": 10.0, "publish_retry_seconds": 0.0, **given}
    return S3Sink(factories.settings(s3_url=url, s3_endpoint_url=endpoint, **changes))


def keys(client: Any) -> list[str]:
    """Of all objects, in the order they were last written."""
    found = client.list_objects_v2(Bucket="runs").get("Contents", ())
    return [f["Key"] for f in sorted(found, key=lambda f: f["LastModified"])]


def listen(patch: pytest.MonkeyPatch, event: str, handler: Callable[..., None]) -> None:
    """Have every client of the sink call `handler` at an event of boto3."""
    real = s3._client

    def listening(settings: Settings) -> Any:
        made = real(settings)
        made.meta.events.register(event, handler)
        return made

    patch.setattr(s3, "_client", listening)


def uploads(patch: pytest.MonkeyPatch) -> list[str]:
    """The files that are uploaded from now on, in their order."""
    made: list[str] = []

    def note(model: Any, params: Any, **_: Any) -> None:
        if model.name in ("PutObject", "CompleteMultipartUpload"):
            made.append(params["url_path"].rpartition(f"{RUN}/")[2])

    listen(patch, "before-call.s3", note)
    return made


def break_after(patch: pytest.MonkeyPatch, count: int, error: Exception) -> None:
    """Let so many uploads through; each further one fails so."""
    puts = itertools.count(1)

    def pass_or_fail(request: Any, **_: Any) -> None:
        if request.method == "PUT" and next(puts) > count:
            raise error

    listen(patch, "before-send.s3", pass_or_fail)


# --- what is uploaded ---


def test_a_run_is_complete_under_its_id(endpoint: str, client: Any, folder: RunFolder) -> None:
    said = sink(endpoint).publish(VIEW, folder)
    assert said == f"s3://runs/nightly/{RUN}/: 7 of 7 files uploaded, the others were up to date"
    assert sorted(keys(client)) == sorted(f"nightly/{RUN}/{name}" for name in FILES)
    for name, data in FILES.items():
        key = f"nightly/{RUN}/{name}"
        found = client.get_object(Bucket="runs", Key=key, ChecksumMode="ENABLED")
        assert found["Body"].read() == data
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        assert found["ChecksumSHA256"] == digest
        assert found["ContentType"] == content_type(name)


@pytest.mark.parametrize(
    ("url", "first"), [("s3://runs", f"{RUN}/"), ("s3://runs/a/b/", f"a/b/{RUN}/")]
)
def test_the_prefix_may_be_none_or_deep(
    endpoint: str, client: Any, folder: RunFolder, url: str, first: str
) -> None:
    sink(endpoint, url).publish(VIEW, folder)
    assert all(key.startswith(first) and "//" not in key for key in keys(client))


def test_no_region_need_be_set(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert "7 of 7" in sink(endpoint).publish(VIEW, folder)


def test_run_json_is_the_last(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = uploads(monkeypatch)
    sink(endpoint).publish(VIEW, folder)
    assert sent[-1] == "run.json"
    assert len(sent) == len(FILES)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("run.json", "application/json"),
        ("results.jsonl", "application/x-ndjson"),
        ("metrics.prom", "text/plain; charset=utf-8"),
        ("junit.xml", "application/xml; charset=utf-8"),
        ("report/index.html", "text/html; charset=utf-8"),
        ("report/report.css", "text/css; charset=utf-8"),
        ("report/bars.svg", "image/svg+xml"),
        ("torch_trace/trace.log.zst", "application/zstd"),
        ("tlparse.zip", "application/zip"),
        ("trace.json.gz", "application/octet-stream"),
        ("graph.neff", "application/octet-stream"),
    ],
)
def test_a_browser_learns_what_a_file_is(name: str, kind: str) -> None:
    assert content_type(name) == kind


# --- again ---


def test_publishing_twice_uploads_nothing(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink(endpoint).publish(VIEW, folder)
    sent = uploads(monkeypatch)
    said = sink(endpoint).publish(VIEW, folder)
    assert said.endswith("0 of 7 files uploaded, the others were up to date")
    assert sent == []


def test_only_what_changed_is_uploaded(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink(endpoint).publish(VIEW, folder)
    folder.write("metrics.prom", b"# FOE\n")  # of the same size
    folder.write("new.txt", b"new")
    sent = uploads(monkeypatch)
    sink(endpoint).publish(VIEW, folder)
    assert sorted(sent) == ["metrics.prom", "new.txt"]
    held = client.get_object(Bucket="runs", Key=f"nightly/{RUN}/metrics.prom")["Body"].read()
    assert held == b"# FOE\n"


def test_an_object_without_the_checksum_is_replaced(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put_object(Bucket="runs", Key=f"nightly/{RUN}/metrics.prom", Body=b"# EOF\n")
    sent = uploads(monkeypatch)
    sink(endpoint).publish(VIEW, folder)
    assert "metrics.prom" in sent


@pytest.mark.parametrize("size", [PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES, 2 * PART_BYTES + 1])
def test_a_large_file_goes_up_in_parts_once(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    folder.write("artifacts/large", os.urandom(size))
    sink(endpoint).publish(VIEW, folder)
    found = client.get_object(Bucket="runs", Key=f"nightly/{RUN}/artifacts/large")
    assert found["Body"].read() == folder.path("artifacts/large").read_bytes()
    sent = uploads(monkeypatch)
    sink(endpoint).publish(VIEW, folder)
    assert sent == []
    folder.write("artifacts/large", os.urandom(size))
    sink(endpoint).publish(VIEW, folder)
    assert sent == ["artifacts/large"]


# --- cut short ---


def test_an_upload_that_broke_off_goes_on(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_after(patch, 3, EndpointConnectionError(endpoint_url="http://s3cr3t@x"))
        with pytest.raises(UnreachableError) as e:
            sink(endpoint).publish(VIEW, folder)
    said = "the server cannot be reached or does not respond"
    assert str(e.value) == f"s3://runs/nightly/{RUN}/: {said}"
    first = keys(client)
    assert len(first) == 3
    assert f"nightly/{RUN}/run.json" not in first
    sent = uploads(monkeypatch)
    sink(endpoint).publish(VIEW, folder)
    assert len(sent) == len(FILES) - 3
    assert len(keys(client)) == len(FILES)


def test_a_failure_in_the_midst_of_a_file_leaves_no_parts(
    endpoint: str, client: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = RunFolder(folder.root.with_name("large"))
    large.write("a", os.urandom(3 * PART_BYTES))
    large.write("run.json", b"{}")
    break_after(monkeypatch, 2, ReadTimeoutError(endpoint_url=endpoint))
    with pytest.raises(UnreachableError):
        sink(endpoint).publish(VIEW, large)
    assert keys(client) == []
    assert "Uploads" not in client.list_multipart_uploads(Bucket="runs")


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from compilewatch.sinks import s3
    from compilewatch.store import RunFolder
    from tests import factories
    from tests.run_folder import VIEW

    parts = []
    real = s3._client

    def kill(request, **_):
        if b"partNumber" in request.url.encode():
            parts.append(request.url)
        if len(parts) == 3:
            os.kill(os.getpid(), 9)

    def listening(settings):
        made = real(settings)
        made.meta.events.register("before-send.s3", kill)
        return made

    s3._client = listening
    settings = factories.settings(s3_url="s3://runs/nightly", s3_endpoint_url=sys.argv[1])
    s3.S3Sink(settings).publish(VIEW, RunFolder(Path(sys.argv[2])))
    """
)


def test_an_upload_that_was_killed_goes_on_and_its_parts_are_given_up(
    endpoint: str, client: Any, folder: RunFolder
) -> None:
    folder.write("z", os.urandom(4 * PART_BYTES))
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", KILLED, endpoint, str(folder.root)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(client.list_multipart_uploads(Bucket="runs")["Uploads"]) == 1
    assert f"nightly/{RUN}/run.json" not in keys(client)
    sink(endpoint).publish(VIEW, folder)
    assert "Uploads" not in client.list_multipart_uploads(Bucket="runs")
    assert len(keys(client)) == len(FILES) + 1
    again = sink(endpoint).publish(VIEW, folder)
    assert "0 of 8 files" in again


# --- rejections ---


def test_no_bucket(endpoint: str, folder: RunFolder) -> None:
    with pytest.raises(SinkError, match=r"there is no bucket absent: create it, or set s3.url"):
        sink(endpoint, "s3://absent").publish(VIEW, folder)


def test_no_credentials(endpoint: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(
        SinkError, match="no AWS credentials found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID"
    ):
        sink(endpoint).publish(VIEW, folder)


def test_no_such_profile(endpoint: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(SinkError, match=r"absent.* could not be found: check AWS_PROFILE"):
        sink(endpoint).publish(VIEW, folder)


def test_nobody_there(folder: RunFolder) -> None:
    with pytest.raises(UnreachableError, match="cannot be reached"):
        sink(f"http://127.0.0.1:{free_port()}").publish(VIEW, folder)


def test_an_endpoint_that_is_none(folder: RunFolder) -> None:
    with pytest.raises(SinkError, match=r"check s3.url and s3.endpoint_url"):
        sink("nonsense").publish(VIEW, folder)


@pytest.mark.parametrize("url", ["runs/nightly", "s3://", "https://runs", "s3://key:secret@runs"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="s3_url is not an address in S3") as e:
        S3Sink(factories.settings(s3_url=url))
    assert "secret" not in str(e.value)


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (403, "AccessDenied", SinkError, "need s3:ListBucket, s3:GetObject and s3:PutObject"),
        (403, "InvalidAccessKeyId", SinkError, "AWS rejects these credentials"),
        (403, "ExpiredToken", SinkError, "AWS rejects these credentials"),
        (400, "IllegalLocationConstraintException", SinkError, "set AWS_DEFAULT_REGION to"),
        (503, "SlowDown", UnreachableError, "overloaded or failing"),
        (500, "InternalError", UnreachableError, "overloaded or failing"),
        (400, "Odd", SinkError, r"PutObject failed \(Odd\)"),
    ],
)
def test_what_s3_rejects_is_one_line_that_says_what_to_do(
    endpoint: str,
    client: Any,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    kind: type[SinkError],
    said: str,
) -> None:
    answer = {"Error": {"Code": code, "Message": "AKIAEXAMPLE s3cr3t"}}
    break_after(monkeypatch, 0, ClientError(answer, "PutObject"))
    with pytest.raises(kind, match=said) as e:
        sink(endpoint).publish(VIEW, folder)
    assert type(e.value) is kind
    assert "\n" not in str(e.value)
    assert "s3cr3t" not in str(e.value)
    assert "AKIAEXAMPLE" not in str(e.value)


# --- of a sweep ---


def test_a_sweep_is_uploaded_at_its_end(tmp_path: Path, endpoint: str, client: Any) -> None:
    changes = {"s3_url": "s3://runs", "s3_endpoint_url": endpoint, "sinks": ["html", "junit"]}
    seen = run_sweep(tmp_path, settings=changes)
    assert seen.notes == ()
    names = store(tmp_path).files(seen.run.id).names()
    assert "report/index.html" in names
    assert sorted(keys(client)) == [f"{seen.run.id}/{name}" for name in names]
    log = f"{seen.run.id}/logs/{seen.run.id}.jsonl"
    held = client.get_object(Bucket="runs", Key=log)["Body"].read()
    assert held == store(tmp_path).files(seen.run.id).path(f"logs/{seen.run.id}.jsonl").read_bytes()
