"""The sink s3 against a MinIO of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import requests
from botocore.config import Config

from scripts.verify_stack.report import CheckError, until
from scripts.verify_stack.services import free_ports

KEYS = {"AWS_ACCESS_KEY_ID": "verify-stack", "AWS_SECRET_ACCESS_KEY": "verify-stack"}
BUCKET = "runs"


@dataclass(frozen=True, kw_only=True)
class Storage:
    url: str
    version: str

    @property
    def environment(self) -> Mapping[str, str]:
        """What compilewatch needs to send runs here."""
        return KEYS | {
            "AWS_DEFAULT_REGION": "us-east-1",
            "COMPILEWATCH_S3_URL": f"s3://{BUCKET}/kept",
            "COMPILEWATCH_S3_ENDPOINT_URL": self.url,
        }

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def has(self, run: Path) -> str:
        """Whether each file of the run is an object of its size, and nothing else is there."""
        files = {
            f"kept/{run.name}/{path.relative_to(run)}": path.stat().st_size
            for path in run.rglob("*")
            if path.is_file()
        }
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        kept = {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", ())}
        if files != kept:
            differing = sorted(files.items() ^ kept.items())
            raise CheckError(f"{len(differing)} objects are missing or other: {differing[0][0]}")
        return f"{len(files)} files"


@contextmanager
def minio(folder: Path) -> Iterator[Storage]:
    """A MinIO with an empty bucket. Raises CheckError where it does not start."""
    program = shutil.which("minio")
    assert program is not None
    port, console = free_ports(2)
    command = [program, "server", "--address", f"127.0.0.1:{port}"]
    command += ["--console-address", f"127.0.0.1:{console}", str(folder / "minio")]
    user, password = KEYS.values()
    environment = os.environ | {"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": password}
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    url = f"http://127.0.0.1:{port}"

    def ready() -> str:
        try:
            requests.get(f"{url}/minio/health/ready", timeout=5).raise_for_status()
        except requests.RequestException:
            raise CheckError("minio does not answer") from None
        return ""

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until(60, ready)
            words = said.stdout.split()
            storage = Storage(url=url, version=words[2] if len(words) > 2 else "unknown")
            storage.client().create_bucket(Bucket=BUCKET)
            yield storage
        finally:
            process.terminate()
