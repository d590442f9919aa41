"""AWS: the only place that makes clients and explains their errors.

Codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API") and of the S3 API
reference ("Error responses"). AWS's own messages are not repeated, because they may contain keys.
"""

from typing import Any, NamedTuple

import boto3
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from compilewatch.errors import did_you_mean

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
        config: arguments of `botocore.config.Config`.

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
    return session.client(service, endpoint_url=endpoint_url or None, config=settings)


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
