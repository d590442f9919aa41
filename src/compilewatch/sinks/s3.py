"""The sink `s3`: the folder of a run, as objects under `s3://bucket/prefix/<run>/`.

Each object is uploaded with a SHA-256 that S3 itself checks and keeps, and is skipped where S3
has it with the same one. `run.json` goes last: where it lies, an upload was complete. Objects get
no ACL and no encryption of their own; the bucket's settings hold.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import mimetypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from compilewatch import aws
from compilewatch.config.settings import Settings
from compilewatch.errors import ConfigError, SinkError, UnreachableError
from compilewatch.records.views import RunView
from compilewatch.sinks import RunFiles
from compilewatch.store.runs import RUN_FILE

PART_BYTES = 8 * 2**20
"""Files from this size on go up in parts of it, and their checksum is one of their parts'."""
CONCURRENCY = 4
_OTHER_REGION = frozenset(
    {
        "301",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
    }
)
_TEXT = {
    ".css": "text/css",
    ".html": "text/html",
    ".log": "text/plain",
    ".mlir": "text/plain",
    ".prom": "text/plain",
    ".py": "text/plain",
    ".txt": "text/plain",
    ".xml": "application/xml",
}
_OTHER = {
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".zst": "application/zstd",  # RFC 8878; no Content-Encoding, so that what is saved is the file
}


class S3Sink:
    """Uploads a run; again, only what changed. Raises SinkError, UnreachableError.

    What an upload that was cut short left is kept: the next one goes on with the next file. Parts
    of a file that never became an object are given up then. One process at a time publishes a run.
    """

    name = "s3"

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError where `s3.url` is no `s3://bucket/prefix`."""
        self._bucket, self._prefix = _address(settings.s3.url)
        self._settings = settings

    def publish(self, view: RunView, files: RunFiles) -> str:
        folder = "/".join(filter(None, (self._prefix, view.run.id))) + "/"
        where = f"s3://{self._bucket}/{folder}"
        try:
            with contextlib.closing(_client(self._settings)) as client:
                sent = self._upload(_Upload(client, self._bucket, folder), files)
        except (BotoCoreError, ClientError, S3UploadFailedError, ValueError) as error:
            raise _mapped(error, self._bucket, where) from None
        except OSError as error:
            raise SinkError(f"{where}: {error.filename} cannot be read: {error.strerror}") from None
        return f"{where}: {sent} of {len(files.names())} files uploaded, the others were there"

    def _upload(self, upload: _Upload, files: RunFiles) -> int:
        """How many files were not there yet."""
        upload.give_up_parts()
        there = dict(upload.there())
        others = [name for name in files.names() if name != RUN_FILE]
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            try:
                sent = sum(pool.map(lambda n: upload.put(n, files.path(n), there), others))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return sent + upload.put(RUN_FILE, files.path(RUN_FILE), there)


class _Upload:
    """One run's objects."""

    def __init__(self, client: Any, bucket: str, folder: str) -> None:
        self._client = client
        self._bucket = bucket
        self._folder = folder
        # Files are what runs at the same time; the parts of one follow each other.
        self._transfer = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False
        )

    def there(self) -> Iterator[tuple[str, int]]:
        """What S3 has of this run: names and sizes."""
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._folder):
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix(self._folder), found["Size"]

    def give_up_parts(self) -> None:
        """Abort what a killed upload left half done, and what would be paid for until then."""
        pages = self._client.get_paginator("list_multipart_uploads")
        try:
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._folder):
                for found in page.get("Uploads", ()):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=found["Key"], UploadId=found["UploadId"]
                    )
        except ClientError as error:
            # Tidying up is not worth a permission: a bucket may have a rule that does it.
            if aws.answer_of(error).code not in ("AccessDenied", "403", "NoSuchUpload"):
                raise

    def put(self, name: str, path: Path, there: dict[str, int]) -> bool:
        """Upload a file unless S3 has it; whether it was uploaded."""
        key = self._folder + name
        if there.get(name) == path.stat().st_size:
            head = self._client.head_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
            # S3 itself appends `-` and the number of parts; not every store that speaks S3 does.
            if head.get("ChecksumSHA256", "").partition("-")[0] == checksum(path):
                return False
        extra = {"ChecksumAlgorithm": "SHA256", "ContentType": content_type(name)}
        self._client.upload_file(
            str(path), self._bucket, key, ExtraArgs=extra, Config=self._transfer
        )
        return True


def checksum(path: Path) -> str:
    """SHA-256 as S3 keeps it, in base64: of the file, or of its parts' digests in a row.

    Source: docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
    """
    with path.open("rb") as file:
        parts = iter(lambda: file.read(PART_BYTES), b"")
        digests = [hashlib.sha256(part).digest() for part in parts]
    whole = hashlib.sha256(b"".join(digests)).digest()
    # One part less than full, or an empty file, is no upload in parts.
    if path.stat().st_size < PART_BYTES:
        whole = digests[0] if digests else hashlib.sha256().digest()
    return base64.b64encode(whole).decode()


def content_type(name: str) -> str:
    """What a browser is told; the same on every machine, whatever its mime.types say."""
    suffix = Path(name).suffix.lower()
    if suffix in _TEXT:
        return f"{_TEXT[suffix]}; charset=utf-8"
    if suffix in _OTHER:
        return _OTHER[suffix]
    guessed, encoding = mimetypes.MimeTypes().guess_type(name)
    return guessed if guessed and encoding is None else "application/octet-stream"


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc:
        raise ConfigError("s3_url is no place in S3: set it to one like s3://bucket/prefix")
    return parts.netloc, parts.path.strip("/")


def _client(settings: Settings) -> Any:
    """Credentials and region come from where AWS's own tools take them.

    botocore counts attempts, not seconds: four make about ten seconds of waiting between them.
    """
    timeout = settings.publish.timeout_seconds
    attempts = 1 + min(9, math.ceil(settings.publish.retry_seconds / 10))
    return aws.client(
        "s3",
        endpoint_url=settings.s3.endpoint_url,
        attempts=attempts,
        connect_timeout=timeout,
        read_timeout=timeout,
        max_pool_connections=CONCURRENCY,
        # A server that is not AWS's has no name for each bucket.
        s3={"addressing_style": "path"} if settings.s3.endpoint_url else None,
    )


def _mapped(error: Exception, bucket: str, where: str) -> SinkError:
    """The error of ours for one of boto3."""
    if isinstance(error, S3UploadFailedError):
        cause = error.__cause__ or error.__context__
        error = cause if isinstance(cause, ClientError) else error
    if isinstance(error, aws.CONNECTION):
        return UnreachableError(f"{where}: the server cannot be reached, or does not answer")
    if aws.answer_of(error).code in aws.BUSY:
        return UnreachableError(
            f"{where}: the server is too busy or in trouble ({aws.answer_of(error).code})"
        )
    return SinkError(f"{where}: {_why(error, bucket)}")


def _why(error: Exception, bucket: str) -> str:
    """What happened and what to do, in one line without credentials."""
    code, _, operation = aws.answer_of(error)
    if code in ("NoSuchBucket", "404"):
        return f"there is no bucket {bucket}: create it, or set s3.url to one that exists"
    if code in aws.DENIED:
        return (
            f"denied ({operation}): the credentials need s3:ListBucket, s3:GetObject and "
            "s3:PutObject there"
        )
    if code in _OTHER_REGION and isinstance(error, ClientError):
        region = error.response.get("Error", {}).get("Region")
        return f"the bucket is in another region: set AWS_DEFAULT_REGION to {region or 'its own'}"
    if isinstance(error, ValueError):
        return f"it cannot be used ({type(error).__name__}): check s3.url and s3.endpoint_url"
    return aws.explain(error)
