"""AWS: the only place that makes clients and explains their errors.

Codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API") and of the S3 API
reference ("Error responses"). AWS's own messages are not repeated, because they may contain keys.
"""

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import boto3
import urllib3
from botocore import exceptions
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from compilewatch.errors import did_you_mean
from compilewatch.retry import within

FAULTS = frozenset(
    {"500", "502", "503", "InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"}
)
"""Codes after which it is unknown whether the call had an effect."""

BUSY = FAULTS | {
    *("RequestLimitExceeded", "RequestThrottled", "RequestTimeout", "SlowDown"),
    *("Throttling", "ThrottlingException"),
}
"""Codes of temporary errors."""

REJECTED_CREDENTIALS = frozenset(
    {"AuthFailure", "ExpiredToken", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken"}
    | {"OptInRequired", "RequestExpired", "SignatureDoesNotMatch"}
)

DENIED = frozenset({"403", "AccessDenied", "UnauthorizedOperation"})

LARGEST_RESPONSE_BYTES = 64 * 2**20
SLOWEST_BYTES_PER_SECOND = 100_000

CONNECTION = (
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
)
"""No response: the server is unreachable, or closed the connection."""

_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws sso login`, or give "
    "this machine an instance profile"
)


class ErrorDetails(NamedTuple):
    """How AWS rejected a call; all fields are empty if it did not respond."""

    code: str = ""
    message: str = ""
    operation: str = ""


def client(
    service: str,
    *,
    region: str = "",
    profile: str = "",
    endpoint_url: str = "",
    attempts: int = 1,
    credentials: tuple[str, str] | None = None,
    **config: Any,
) -> Any:
    """Return a boto3 client in a new session, so that it uses the current credentials.

    Args:
        credentials: key id and secret, for a server that is not AWS; None: those of this machine.
        attempts: total number of attempts of botocore; 1 leaves retries to the caller.
        config: arguments of `botocore.config.Config`. Each attempt of a request ends within
            `read_timeout` seconds, and a second more for each 100 kB that it sends.

    Raises the errors of botocore, which `explain` explains, and ValueError for an invalid endpoint.
    """
    session = boto3.Session(
        profile_name=profile or None,
        region_name=region or None,
        aws_access_key_id=credentials[0] if credentials else None,
        aws_secret_access_key=credentials[1] if credentials else None,
    )
    retries = {"mode": "standard", "total_max_attempts": attempts}
    settings = Config(retries=retries, **config)
    created = session.client(service, endpoint_url=endpoint_url or None, config=settings)
    # botocore has no place for it: the event `before-send` cannot reach the session.
    endpoint = created._endpoint
    endpoint.http_session = _LimitedSession(endpoint.http_session, settings.read_timeout)
    return created


class _LimitedSession:
    """A session of botocore whose requests all end, with responses of a limited size."""

    def __init__(self, session: Any, seconds: float) -> None:
        self._session = session
        self._seconds = seconds

    def close(self) -> None:
        self._session.close()

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        sent = int(request.headers.get("Content-Length") or 0)
        try:
            return within(self._seconds + sent / SLOWEST_BYTES_PER_SECOND, self._send, request)
        except TimeoutError as error:
            raise exceptions.ReadTimeoutError(endpoint_url=request.url, error=error) from None

    def _send(self, request: AWSPreparedRequest) -> AWSResponse:
        if request.stream_output:  # the caller reads it
            return self._session.send(request)
        request.stream_output = True
        response = self._session.send(request)
        is_redirect = request.method == "HEAD" and response.status_code in (301, 302, 307)
        try:
            if is_redirect and "x-amz-bucket-region" not in response.headers:
                # botocore would send the request again, and again, to learn the region.
                raise exceptions.HTTPClientError(error="a redirect that names no region")
            body = b"".join(_limited(response.raw))
        except urllib3.exceptions.HTTPError as error:
            raise exceptions.HTTPClientError(error=error) from None
        finally:
            response.raw.close()
        raw = urllib3.HTTPResponse(io.BytesIO(body), preload_content=False)
        return AWSResponse(response.url, response.status_code, response.headers, raw)


def _limited(raw: urllib3.HTTPResponse) -> Iterator[bytes]:
    size = 0
    for chunk in raw.stream(2**16):
        size += len(chunk)
        if size > LARGEST_RESPONSE_BYTES:
            raise exceptions.HTTPClientError(error=f"more than {LARGEST_RESPONSE_BYTES:,} bytes")
        yield chunk


def error_details(error: BaseException | None) -> ErrorDetails:
    """Return the details of an error, raised by a call or by a waiter."""
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        return ErrorDetails(
            details.get("Code", ""), details.get("Message", ""), error.operation_name
        )
    if isinstance(error, WaiterError) and isinstance(error.last_response, dict):
        details = error.last_response.get("Error", {})
        return ErrorDetails(
            details.get("Code", ""), details.get("Message", ""), error.kwargs["name"]
        )
    return ErrorDetails()


def explain(error: BaseException, region: str = "") -> str:
    """Return what happened and what to do, in one line without secrets, for any service."""
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return f"no AWS credentials found: {_CREDENTIALS}"
    if isinstance(error, exceptions.TokenRetrievalError | exceptions.SSOError):
        return f"the AWS login of this machine has expired ({error}): log in again"
    if isinstance(error, exceptions.ProfileNotFound):
        return f"{error}: check AWS_PROFILE, the settings and ~/.aws/config"
    if isinstance(error, exceptions.NoRegionError):
        return "AWS needs a region: set AWS_REGION"
    if isinstance(error, exceptions.InvalidRegionError) or not is_known(region):
        known = boto3.Session().get_available_regions("ec2")
        near = did_you_mean(region, known, most=2)
        return f"this boto3 knows no AWS region {region!r}{near} ({error})"
    code, _, operation = error_details(error)
    if code in REJECTED_CREDENTIALS:
        return f"AWS rejects these credentials ({code}): renew them, and check this machine's clock"
    if code:
        return f"{operation} failed ({code})"
    if isinstance(error, CONNECTION):
        return f"AWS cannot be reached or does not respond: {error}"
    known_error = isinstance(error, BotoCoreError)
    return f"{type(error).__name__}: {error}" if known_error else type(error).__name__


def is_known(region: str) -> bool:
    """Whether boto3 knows a region; True for an empty name."""
    return not region or region in boto3.Session().get_available_regions("ec2")
