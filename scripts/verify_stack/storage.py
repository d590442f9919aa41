"""A MinIO of its own for the sink s3."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import requests
from botocore.config import Config

from scripts.verify_stack.services import CheckError, free_ports, until

USER = "verify-stack"
BUCKET = "runs"


@contextmanager
def minio(folder: Path) -> Iterator[tuple[dict[str, str], Callable[[], dict[str, int]], str]]:
    """A MinIO with an empty bucket. Raises CheckError where it does not start.

    Yields what compilewatch needs to send runs there, the sizes of objects by key, and the version.
    """
    program = shutil.which("minio")
    assert program is not None
    port, console = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    command = [program, "server", "--address", f"127.0.0.1:{port}"]
    command += ["--console-address", f"127.0.0.1:{console}", str(folder / "minio")]
    keys = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": USER}
    environment = keys | {
        "AWS_DEFAULT_REGION": "us-east-1",
        "COMPILEWATCH_S3_URL": f"s3://{BUCKET}/kept",
        "COMPILEWATCH_S3_ENDPOINT_URL": url,
    }
    client: Any = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=USER,
        aws_secret_access_key=USER,
        config=Config(s3={"addressing_style": "path"}),
    )

    def ready() -> None:
        try:
            requests.get(f"{url}/minio/health/ready", timeout=5).raise_for_status()
        except requests.RequestException:
            raise CheckError("minio does not answer") from None

    def objects() -> dict[str, int]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", ())}

    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    with subprocess.Popen(
        command,
        env={**os.environ, "MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": USER},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            until(60, ready)
            client.create_bucket(Bucket=BUCKET)
            yield environment, objects, (said.stdout.split() + ["unknown"] * 3)[2]
        finally:
            process.terminate()
