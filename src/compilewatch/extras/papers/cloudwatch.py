"""Metrics of papers to CloudWatch, within the limits of PutMetricData.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html: at most
1,000 data and 1 MB a request, 30 dimensions, no NaN and no infinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from botocore import exceptions

from compilewatch import aws
from compilewatch.errors import SinkError, UnreachableError
from compilewatch.extras.papers.metrics import Datum
from compilewatch.extras.papers.settings import CloudWatchSettings

MAX_DATA = 1_000
MAX_BYTES = 800_000
"""Below the limit of 1 MB, because a request is encoded differently from what is measured here."""


def put(settings: CloudWatchSettings, data: Sequence[Datum]) -> str:
    """Send data and return a line about them. Raises SinkError, or UnreachableError."""
    sent = 0
    try:
        client = aws.client(
            "cloudwatch",
            region=settings.region,
            profile=settings.profile,
            endpoint_url=settings.endpoint_url,
            attempts=3,
        )
        for batch in batches(data):
            client.put_metric_data(
                Namespace=settings.namespace, MetricData=[datum.request() for datum in batch]
            )
            sent += len(batch)
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        said = f"CloudWatch: {aws.explain(error, settings.region)} ({sent} data were sent)"
        transient = aws.error_details(error).code in aws.BUSY or isinstance(error, aws.CONNECTION)
        raise (UnreachableError if transient else SinkError)(said) from None
    return f"cloudwatch: {sent} data in the namespace {settings.namespace}"


def batches(data: Iterable[Datum]) -> Iterator[list[Datum]]:
    """Split data into requests within both limits."""
    batch: list[Datum] = []
    size = 0
    for datum in data:
        bytes_ = len(msgspec.json.encode(datum)) + 200
        if batch and (len(batch) == MAX_DATA or size + bytes_ > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(datum)
        size += bytes_
    if batch:
        yield batch
