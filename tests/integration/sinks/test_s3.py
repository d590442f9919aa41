"""Against moto's server: S3's protocol, checksums and all, on the loopback."""

import base64
import hashlib
import itertools
import os
import signal
import subprocess
import sys
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


class Bucket:
    """The bucket `runs`, a run's folder, and what boto3 does while it is published."""

    def __init__(self, endpoint: str, folder: RunFolder, patch: pytest.MonkeyPatch) -> None:
        self.endpoint, self.folder, self._patch = endpoint, folder, patch
        self.client = boto3.client("s3", endpoint_url=endpoint)

    def publish(self, url: str = "s3://runs/nightly", **given: Any) -> str:
        settings: dict[str, Any] = {"publish_timeout_seconds": 10.0, "publish_retry_seconds": 0.0}
        settings |= {"s3_url": url, "s3_endpoint_url": self.endpoint, **given}
        return S3Sink(factories.settings(**settings)).publish(VIEW, self.folder)

    def stored(self) -> list[str]:
        return [
            one["Key"] for one in self.client.list_objects_v2(Bucket="runs").get("Contents", ())
        ]

    def unfinished(self) -> list[dict[str, Any]]:
        return list(self.client.list_multipart_uploads(Bucket="runs").get("Uploads", ()))

    def get(self, name: str, prefix: str = f"nightly/{RUN}/") -> bytes:
        return bytes(self.client.get_object(Bucket="runs", Key=prefix + name)["Body"].read())

    def listen(self, event: str, handler: Callable[..., None]) -> None:
        """Have every client of the sink call `handler` at an event of boto3."""
        real = s3._client

        def listening(settings: Settings) -> Any:
            made = real(settings)
            made.meta.events.register(event, handler)
            return made

        self._patch.setattr(s3, "_client", listening)

    def sent(self, **given: Any) -> list[str]:
        """Publish, and return the files that were uploaded, in their order."""
        made: list[str] = []

        def note(model: Any, params: Any, **_: Any) -> None:
            if model.name in ("PutObject", "CompleteMultipartUpload"):
                made.append(params["url_path"].rpartition(f"{RUN}/")[2])

        self.listen("before-call.s3", note)
        self.publish(**given)
        return made

    def break_after(self, count: int, error: Exception) -> None:
        """Let so many uploads through; each further one fails so."""
        puts = itertools.count(1)

        def pass_or_fail(request: Any, **_: Any) -> None:
            if request.method == "PUT" and next(puts) > count:
                raise error

        self.listen("before-send.s3", pass_or_fail)


@pytest.fixture
def bucket(
    endpoint: str, _credentials: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    """Empty, with a run to publish."""
    folder = RunFolder(tmp_path / "run")
    for name, data in FILES.items():
        folder.write(name, data)
    made = Bucket(endpoint, folder, monkeypatch)
    made.client.create_bucket(Bucket="runs")
    yield made
    for one in made.unfinished():
        made.client.abort_multipart_upload(Bucket="runs", Key=one["Key"], UploadId=one["UploadId"])
    for key in made.stored():
        made.client.delete_object(Bucket="runs", Key=key)
    made.client.delete_bucket(Bucket="runs")
    made.client.close()


def test_a_run_is_complete_under_its_id_and_run_json_is_the_last(bucket: Bucket) -> None:
    said = bucket.publish()
    assert said == f"s3://runs/nightly/{RUN}/: 7 of 7 files uploaded, the others were up to date"
    assert sorted(bucket.stored()) == sorted(f"nightly/{RUN}/{name}" for name in FILES)
    for name, data in FILES.items():
        key = f"nightly/{RUN}/{name}"
        found = bucket.client.get_object(Bucket="runs", Key=key, ChecksumMode="ENABLED")
        assert found["Body"].read() == data
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        assert found["ChecksumSHA256"] == digest
        assert found["ContentType"] == content_type(name)
    sent = bucket.sent(url="s3://runs/elsewhere")
    assert (len(sent), sent[-1]) == (len(FILES), "run.json")


def test_the_prefix_may_be_none_or_deep_and_no_region_need_be_set(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    for url in ("s3://runs", "s3://runs/a/b/"):
        assert "7 of 7" in bucket.publish(url)
    folders = (f"{RUN}/", f"a/b/{RUN}/")
    assert sorted(bucket.stored()) == sorted(f + name for f in folders for name in FILES)


KINDS = {
    "run.json": "application/json",
    "results.jsonl": "application/x-ndjson",
    "metrics.prom": "text/plain; charset=utf-8",
    "junit.xml": "application/xml; charset=utf-8",
    "report/index.html": "text/html; charset=utf-8",
    "report/report.css": "text/css; charset=utf-8",
    "report/bars.svg": "image/svg+xml",
    "torch_trace/trace.log.zst": "application/zstd",
    "tlparse.zip": "application/zip",
    "trace.json.gz": "application/octet-stream",
    "graph.neff": "application/octet-stream",
}


def test_a_browser_learns_what_a_file_is() -> None:
    assert {name: content_type(name) for name in KINDS} == KINDS


def test_only_what_changed_is_uploaded_again(bucket: Bucket) -> None:
    key = f"nightly/{RUN}/metrics.prom"
    bucket.client.put_object(Bucket="runs", Key=key, Body=b"# EOF\n")  # without its checksum
    assert len(bucket.sent()) == len(FILES)
    assert bucket.publish().endswith("0 of 7 files uploaded, the others were up to date")
    assert bucket.sent() == []
    bucket.folder.write("metrics.prom", b"# FOE\n")  # of the same size
    bucket.folder.write("new.txt", b"new")
    assert sorted(bucket.sent()) == ["metrics.prom", "new.txt"]
    assert bucket.get("metrics.prom") == b"# FOE\n"


def test_a_large_file_goes_up_in_parts_once(bucket: Bucket) -> None:
    """Some seconds: at the edge of a part, and with a last part of one byte."""
    for size in (PART_BYTES, 2 * PART_BYTES + 1):
        data = os.urandom(size)
        bucket.folder.write("artifacts/large", data)
        assert "artifacts/large" in bucket.sent()
        assert bucket.get("artifacts/large") == data
        assert bucket.sent() == []


def test_an_upload_that_broke_off_goes_on(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    real = s3._client
    bucket.break_after(3, EndpointConnectionError(endpoint_url="http://s3cr3t@x"))
    with pytest.raises(UnreachableError) as e:
        bucket.publish()
    said = "the server cannot be reached or does not respond"
    assert str(e.value) == f"s3://runs/nightly/{RUN}/: {said}"
    first = bucket.stored()
    assert len(first) == 3
    assert f"nightly/{RUN}/run.json" not in first
    monkeypatch.setattr(s3, "_client", real)
    assert len(bucket.sent()) == len(FILES) - 3
    assert len(bucket.stored()) == len(FILES)


def test_a_failure_in_the_midst_of_a_file_leaves_no_parts(bucket: Bucket) -> None:
    bucket.folder = RunFolder(bucket.folder.root.with_name("large"))
    bucket.folder.write("a", os.urandom(3 * PART_BYTES))
    bucket.folder.write("run.json", b"{}")
    bucket.break_after(2, ReadTimeoutError(endpoint_url=bucket.endpoint))
    with pytest.raises(UnreachableError):
        bucket.publish()
    assert bucket.stored() == []
    assert bucket.unfinished() == []


KILLED = """
import os, sys
from pathlib import Path
from compilewatch.sinks import s3
from compilewatch.store import RunFolder
from tests import factories
from tests.run_folder import VIEW

def kill(request, parts=[], **_):
    parts += [1] if "partNumber" in request.url else []
    if len(parts) == 3:
        os.kill(os.getpid(), 9)

def listening(settings, real=s3._client):
    made = real(settings)
    made.meta.events.register("before-send.s3", kill)
    return made

s3._client = listening
settings = factories.settings(s3_url="s3://runs/nightly", s3_endpoint_url=sys.argv[1])
s3.S3Sink(settings).publish(VIEW, RunFolder(Path(sys.argv[2])))
"""


def test_an_upload_that_was_killed_goes_on_and_its_parts_are_given_up(bucket: Bucket) -> None:
    """Some seconds: only a process that is killed leaves parts behind."""
    bucket.folder.write("z", os.urandom(4 * PART_BYTES))
    command = [sys.executable, "-c", KILLED, bucket.endpoint, str(bucket.folder.root)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(bucket.unfinished()) == 1
    assert f"nightly/{RUN}/run.json" not in bucket.stored()
    bucket.publish()
    assert bucket.unfinished() == []
    assert len(bucket.stored()) == len(FILES) + 1
    assert "0 of 8 files" in bucket.publish()


def test_what_is_not_there_is_said(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SinkError, match=r"there is no bucket absent: create it, or set s3.url"):
        bucket.publish("s3://absent")
    with pytest.raises(UnreachableError, match="cannot be reached"):
        bucket.publish(s3_endpoint_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SinkError, match=r"check s3.url and s3.endpoint_url"):
        bucket.publish(s3_endpoint_url="nonsense")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_PROFILE", "absent")
        with pytest.raises(SinkError, match=r"absent.* could not be found: check AWS_PROFILE"):
            bucket.publish()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    no_credentials = "no AWS credentials found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID"
    with pytest.raises(SinkError, match=no_credentials):
        bucket.publish()


@pytest.mark.parametrize("url", ["runs/nightly", "s3://", "https://runs", "s3://key:secret@runs"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="s3_url is not an address in S3") as e:
        S3Sink(factories.settings(s3_url=url))
    assert "secret" not in str(e.value)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("AccessDenied", SinkError, "need s3:ListBucket, s3:GetObject and s3:PutObject"),
        ("InvalidAccessKeyId", SinkError, "AWS rejects these credentials"),
        ("ExpiredToken", SinkError, "AWS rejects these credentials"),
        ("IllegalLocationConstraintException", SinkError, "set AWS_DEFAULT_REGION to"),
        ("SlowDown", UnreachableError, "overloaded or failing"),
        ("InternalError", UnreachableError, "overloaded or failing"),
        ("Odd", SinkError, r"PutObject failed \(Odd\)"),
    ],
)
def test_what_s3_rejects_is_one_line_that_says_what_to_do(
    bucket: Bucket, code: str, kind: type[SinkError], said: str
) -> None:
    answer = {"Error": {"Code": code, "Message": "AKIAEXAMPLE s3cr3t"}}
    bucket.break_after(0, ClientError(answer, "PutObject"))
    with pytest.raises(kind, match=said) as e:
        bucket.publish()
    assert type(e.value) is kind
    assert not [text for text in ("\n", "s3cr3t", "AKIAEXAMPLE") if text in str(e.value)]


def test_a_sweep_is_uploaded_at_its_end(tmp_path: Path, bucket: Bucket) -> None:
    changes = {"s3_url": "s3://runs", "s3_endpoint_url": bucket.endpoint}
    seen = run_sweep(tmp_path, settings={**changes, "sinks": ["html", "junit"]})
    assert seen.notes == ()
    files = store(tmp_path).files(seen.run.id)
    assert "report/index.html" in files.names()
    assert sorted(bucket.stored()) == [f"{seen.run.id}/{name}" for name in files.names()]
    log = f"logs/{seen.run.id}.jsonl"
    assert bucket.get(log, f"{seen.run.id}/") == files.path(log).read_bytes()
