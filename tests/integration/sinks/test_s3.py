"""Against moto's server: S3's protocol, checksums and all, on the loopback."""

import base64
import hashlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError, EndpointConnectionError
from s3transfer.utils import ChunksizeAdjuster

from compilewatch.config import Settings
from compilewatch.errors import ConfigError, SinkError, UnreachableError
from compilewatch.sinks import s3
from compilewatch.store import RunFolder
from tests import aws, factories
from tests.run_folder import RUN, VIEW
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
PART_BYTES = 2**16
"""S3's least is 5 MiB, which moto would take seconds for."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, aws.moto() as address:
        patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART_BYTES)
        yield address


class Bucket:
    """The bucket `runs`, a run's folder, and what boto3 does while it is published."""

    def __init__(self, endpoint: str, folder: RunFolder, patch: pytest.MonkeyPatch) -> None:
        self.endpoint, self.folder, self._patch = endpoint, folder, patch
        self.client = boto3.client("s3", endpoint_url=endpoint)

    def publish(self, url: str = "s3://runs/nightly", **given: Any) -> str:
        settings: dict[str, Any] = {"publish_timeout_seconds": 10.0, "publish_retry_seconds": 0.0}
        settings |= {"s3_url": url, "s3_endpoint_url": self.endpoint, **given}
        return s3.S3Sink(factories.settings(**settings)).publish(VIEW, self.folder)

    def stored(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket="runs")
        return sorted(one["Key"] for one in listed.get("Contents", ()))

    def unfinished(self) -> list[dict[str, Any]]:
        return list(self.client.list_multipart_uploads(Bucket="runs").get("Uploads", ()))

    def get(self, name: str, prefix: str = f"nightly/{RUN}/") -> bytes:
        return bytes(self.client.get_object(Bucket="runs", Key=prefix + name)["Body"].read())

    def listen(self, event: str, handler: Callable[..., None]) -> None:
        """Have every client of the sink call `handler` at an event of boto3."""
        real = s3._client

        def listening(settings: Settings) -> Any:
            client = real(settings)
            client.meta.events.register(event, handler)
            return client

        self._patch.setattr(s3, "_client", listening)

    def sent(self, **given: Any) -> list[str]:
        """Publish, and return the files that were uploaded, in their order."""
        names: list[str] = []

        def note(model: Any, params: Any, **_: Any) -> None:
            if model.name in ("PutObject", "CompleteMultipartUpload"):
                names.append(params["url_path"].rpartition(f"{RUN}/")[2])

        self.listen("before-call.s3", note)
        self.publish(**given)
        return names

    def break_after(self, count: int, error: Exception) -> None:
        """Let so many uploads through; each further one fails so."""
        puts = itertools.count(1)

        def pass_or_fail(request: Any, **_: Any) -> None:
            if request.method == "PUT" and next(puts) > count:
                raise error

        self.listen("before-send.s3", pass_or_fail)


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Empty, with a run to publish."""
    aws.no_configuration(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    parts = TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False
    )
    monkeypatch.setattr(s3, "_TRANSFER", parts)
    monkeypatch.setattr(
        "s3transfer.upload.ChunksizeAdjuster", partial(ChunksizeAdjuster, min_size=1)
    )
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


def test_a_run_is_complete_under_its_id_and_run_json_is_the_last(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = bucket.publish()
    assert said == f"s3://runs/nightly/{RUN}/: 7 of 7 files uploaded, the others were up to date"
    assert bucket.stored() == sorted(f"nightly/{RUN}/{name}" for name in FILES)
    for name, data in FILES.items():
        found = bucket.client.get_object(
            Bucket="runs", Key=f"nightly/{RUN}/{name}", ChecksumMode="ENABLED"
        )
        assert found["Body"].read() == data
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        assert found["ChecksumSHA256"] == digest
        assert found["ContentType"] == s3.content_type(name)
    # The prefix may be none or deep, and no region need be set.
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    for url, folder in (("s3://runs", ""), ("s3://runs/a/b/", "a/b/")):
        sent = bucket.sent(url=url)
        assert (len(sent), sent[-1]) == (len(FILES), "run.json")
        assert {f"{folder}{RUN}/{name}" for name in FILES} <= set(bucket.stored())


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
    assert {name: s3.content_type(name) for name in KINDS} == KINDS


def test_only_what_changed_is_uploaded_again(bucket: Bucket) -> None:
    key = f"nightly/{RUN}/metrics.prom"
    bucket.client.put_object(Bucket="runs", Key=key, Body=b"# EOF\n")  # without its checksum
    assert len(bucket.sent()) == len(FILES)
    assert bucket.publish().endswith("0 of 7 files uploaded, the others were up to date")
    bucket.folder.write("metrics.prom", b"# FOE\n")  # of the same size
    large = {f"artifacts/{size}": os.urandom(size) for size in (PART_BYTES, 2 * PART_BYTES + 1)}
    for name, data in large.items():  # at the edge of a part, and with a last part of one byte
        bucket.folder.write(name, data)
    assert sorted(bucket.sent()) == sorted(["metrics.prom", *large])
    assert bucket.get("metrics.prom") == b"# FOE\n"
    assert {name: bucket.get(name) for name in large} == large
    assert bucket.sent() == []


def test_an_upload_that_broke_off_goes_on(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    real = s3._client
    bucket.break_after(3, EndpointConnectionError(endpoint_url="http://s3cr3t@x"))
    with pytest.raises(UnreachableError) as e:
        bucket.publish()
    said = "the server cannot be reached or does not respond"
    assert str(e.value) == f"s3://runs/nightly/{RUN}/: {said}"
    assert len(bucket.stored()) == 3
    assert f"nightly/{RUN}/run.json" not in bucket.stored()
    monkeypatch.setattr(s3, "_client", real)
    assert len(bucket.sent()) == len(FILES) - 3
    assert len(bucket.stored()) == len(FILES)


KILLED = f"""
import os, sys
from functools import partial
from pathlib import Path
from s3transfer import upload
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
upload.ChunksizeAdjuster = partial(upload.ChunksizeAdjuster, min_size=1)
s3._TRANSFER.multipart_threshold = s3._TRANSFER.multipart_chunksize = {PART_BYTES}
settings = factories.settings(s3_url="s3://runs/nightly", s3_endpoint_url=sys.argv[1])
s3.S3Sink(settings).publish(VIEW, RunFolder(Path(sys.argv[2])))
"""


def test_an_upload_that_was_killed_goes_on(bucket: Bucket) -> None:
    """A second: only a process that is killed leaves parts behind."""
    bucket.folder.write("z", os.urandom(4 * PART_BYTES))
    command = [sys.executable, "-c", KILLED, bucket.endpoint, str(bucket.folder.root)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(bucket.unfinished()) == 1
    assert f"nightly/{RUN}/run.json" not in bucket.stored()
    bucket.publish()
    assert len(bucket.stored()) == len(FILES) + 1


def rejected(code: str, kind: type[SinkError], said: str) -> Any:
    """S3 answers an upload with this code."""
    return pytest.param({}, {}, code, kind, said, id=code)


@pytest.mark.parametrize(
    ("given", "variables", "code", "kind", "said"),
    [
        ({"url": "s3://absent"}, {}, "", SinkError, r"no bucket absent: create it, or set s3.url"),
        ({"s3_endpoint_url": "http://127.0.0.1:1"}, {}, "", UnreachableError, "cannot be reached"),
        ({"s3_endpoint_url": "x"}, {}, "", SinkError, r"check s3.url and s3.endpoint_url"),
        ({}, {"AWS_PROFILE": "absent"}, "", SinkError, r"absent.* be found: check AWS_PROFILE"),
        (
            {},
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            "",
            SinkError,
            "no AWS credentials found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID",
        ),
        rejected("AccessDenied", SinkError, "need s3:ListBucket, s3:GetObject and s3:PutObject"),
        rejected("ExpiredToken", SinkError, "AWS rejects these credentials"),
        rejected("IllegalLocationConstraintException", SinkError, "set AWS_DEFAULT_REGION to"),
        rejected("SlowDown", UnreachableError, "overloaded or failing"),
        rejected("InternalError", UnreachableError, "overloaded or failing"),
        rejected("Odd", SinkError, r"PutObject failed \(Odd\)"),
    ],
)
def test_what_fails_is_one_line_that_says_what_to_do(
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    variables: dict[str, str],
    code: str,
    kind: type[SinkError],
    said: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if code:
        answer: Any = {"Error": {"Code": code, "Message": "AKIAEXAMPLE s3cr3t"}}
        bucket.break_after(0, ClientError(answer, "PutObject"))
    with pytest.raises(SinkError, match=said) as e:
        bucket.publish(**given)
    assert type(e.value) is kind
    assert not [text for text in ("\n", "s3cr3t", "AKIAEXAMPLE") if text in str(e.value)]


@pytest.mark.parametrize("url", ["runs/nightly", "s3://", "https://runs", "s3://key:secret@runs"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="s3_url is not an address in S3") as e:
        s3.S3Sink(factories.settings(s3_url=url))
    assert "secret" not in str(e.value)


def test_a_sweep_is_uploaded_at_its_end(tmp_path: Path, bucket: Bucket) -> None:
    changes = {"s3_url": "s3://runs", "s3_endpoint_url": bucket.endpoint}
    seen = run_sweep(tmp_path, settings={**changes, "sinks": ["html", "junit"]})
    assert seen.notes == ()
    files = store(tmp_path).files(seen.run.id)
    assert "report/index.html" in files.names()
    assert bucket.stored() == [f"{seen.run.id}/{name}" for name in files.names()]
    log = f"logs/{seen.run.id}.jsonl"
    assert bucket.get(log, f"{seen.run.id}/") == files.path(log).read_bytes()
