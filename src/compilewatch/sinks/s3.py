"""The sink `s3`: the folder of a run, as objects under `s3://bucket/prefix/<run>/`.

S3 checks a SHA-256 of what it receives. Each object also has the file's own as metadata, and is
skipped if S3 already has it with the same one. `run.json` is uploaded last and marks a complete
upload. Objects get no ACL and no encryption of their own; the settings of the bucket apply.
"""

import contextlib
import hashlib
import math
import mimetypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from compilewatch import aws
from compilewatch.config import Settings
from compilewatch.errors import ConfigError, SinkError, UnreachableError
from compilewatch.records import RunView
from compilewatch.store import RunFolder
from compilewatch.store.runs import RUN_FILE

PART_BYTES = 8 * 2**20
"""Larger files are uploaded in parts of this size."""
CONCURRENCY = 4
_TRANSFER = TransferConfig(
    multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False
)
"""Files are uploaded in parallel; the parts of one file are sent in sequence."""
_OTHER_REGION = {
    *("301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
    "PermanentRedirect",
}
_TYPES = {
    **dict.fromkeys((".log", ".mlir", ".prom", ".py"), "text/plain"),
    ".jsonl": "application/x-ndjson",
    ".xml": "application/xml",
    ".zst": "application/zstd",  # RFC 8878; without Content-Encoding, files are saved unchanged
}
"""What browsers are told of files that Python's own table does not know, or knows otherwise."""


class S3Sink:
    """Uploads a run; a later upload only sends what changed. Raises SinkError, UnreachableError.

    The files of an interrupted upload are kept, and the next one continues with the next file.
    Only one process at a time may publish a run.
    """

    name = "s3"

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError if `s3.url` is not of the form `s3://bucket/prefix`."""
        self._bucket, self._prefix = _address(settings.s3.url)
        self._settings = settings

    def publish(self, view: RunView, files: RunFolder) -> str:
        folder = "/".join(filter(None, (self._prefix, view.run.id))) + "/"
        where = f"s3://{self._bucket}/{folder}"
        try:
            with contextlib.closing(_client(self._settings)) as client:
                sent = self._upload(client, folder, files)
        except (BotoCoreError, ClientError, S3UploadFailedError, ValueError) as error:
            raise _mapped(error, self._bucket, where) from None
        except OSError as error:
            raise SinkError(f"{where}: {error.filename} cannot be read: {error.strerror}") from None
        return f"{where}: {sent} of {len(files.names())} files uploaded, the others were up to date"

    def _upload(self, client: Any, folder: str, files: RunFolder) -> int:
        """Upload the files, `run.json` last, and return how many were not up to date."""

        def put(name: str) -> bool:
            return self._put(client, folder + name, files.path(name), sizes.get(folder + name))

        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder)
        listed = (stored for page in pages for stored in page.get("Contents", ()))
        sizes = {stored["Key"]: stored["Size"] for stored in listed}
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            try:
                sent = sum(pool.map(put, (name for name in files.names() if name != RUN_FILE)))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return sent + put(RUN_FILE)

    def _put(self, client: Any, key: str, path: Path, stored_size: int | None) -> bool:
        """Upload a file unless S3 has it; return whether it was uploaded."""
        with path.open("rb") as file:
            metadata = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        if stored_size == path.stat().st_size:
            head = client.head_object(Bucket=self._bucket, Key=key)
            if head["Metadata"] == metadata:
                return False
        kind = content_type(key)
        extra = {"ChecksumAlgorithm": "SHA256", "ContentType": kind, "Metadata": metadata}
        client.upload_file(str(path), self._bucket, key, ExtraArgs=extra, Config=_TRANSFER)
        return True


def content_type(name: str) -> str:
    """Return the content type for browsers, independent of the machine's mime.types."""
    guessed, encoding = mimetypes.MimeTypes().guess_type(name)
    kind = _TYPES.get(Path(name).suffix.lower(), guessed if encoding is None else None)
    text = kind is not None and (kind.startswith("text/") or kind == "application/xml")
    return f"{kind}; charset=utf-8" if text else kind or "application/octet-stream"


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc:
        raise ConfigError("s3_url is not an address in S3: set it to one like s3://bucket/prefix")
    return parts.netloc, parts.path.strip("/")


def _client(settings: Settings) -> Any:
    """Return a client with the credentials and the region that AWS's own tools use.

    botocore limits attempts, not seconds: four attempts wait for about ten seconds in total.
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
        # A server other than AWS has no host name for each bucket.
        s3={"addressing_style": "path"} if settings.s3.endpoint_url else None,
    )


def _mapped(error: Exception, bucket: str, where: str) -> SinkError:
    """Convert an error of boto3: what happened and what to do, in one line without credentials."""
    if isinstance(error, S3UploadFailedError):
        cause = error.__cause__ or error.__context__
        error = cause if isinstance(cause, ClientError) else error
    code, _, operation = aws.error_details(error)
    if isinstance(error, aws.CONNECTION):
        return UnreachableError(f"{where}: the server cannot be reached or does not respond")
    if code in aws.BUSY:
        return UnreachableError(f"{where}: the server is overloaded or failing ({code})")
    why = aws.explain(error)
    if code in ("NoSuchBucket", "404"):
        why = f"there is no bucket {bucket}: create it, or set s3.url to one that exists"
    elif code in aws.DENIED:
        needed = "s3:ListBucket, s3:GetObject and s3:PutObject"
        why = f"denied ({operation}): the credentials need {needed} there"
    elif code in _OTHER_REGION and isinstance(error, ClientError):
        region = error.response.get("Error", {}).get("Region") or "its own"
        why = f"the bucket is in another region: set AWS_DEFAULT_REGION to {region}"
    elif isinstance(error, ValueError):
        why = f"it cannot be used ({type(error).__name__}): check s3.url and s3.endpoint_url"
    return SinkError(f"{where}: {why}")
