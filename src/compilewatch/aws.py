"""AWS: one way to make a client, and one mapping of its errors to sentences.

Codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API") and of the S3 API
reference ("Error responses"). Messages of AWS itself are not repeated here: they may hold keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import boto3
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from compilewatch.errors import did_you_mean

FAULTS = frozenset(
    {"500", "502", "503", "InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"}
)
"""Codes after which it is not known whether the call had an effect."""

BUSY = FAULTS | {
    *("RequestLimitExceeded", "RequestThrottled", "RequestTimeout", "SlowDown"),
    *("Throttling", "ThrottlingException"),
}
"""Codes that pass by themselves."""

REJECTED_CREDENTIALS = frozenset(
    {"AuthFailure", "ExpiredToken", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken"}
    | {"OptInRequired", "RequestExpired", "SignatureDoesNotMatch"}
)

DENIED = frozenset({"403", "AccessDenied", "UnauthorizedOperation"})

CONNECTION = (
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
)
"""No answer came: the server cannot be reached, or went away meanwhile."""

_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws sso login`, or give "
    "this machine an instance profile"
)


class Answer(NamedTuple):
    """How AWS rejected a call; all empty where it did not answer."""

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
    **config: Any,
) -> Any:
    """A client of boto3 in a session of its own, so that it finds the credentials of now.

    Args:
        attempts: how often botocore makes a call in all; 1 leaves retries to the caller.
        config: of `botocore.config.Config`.

    Raises botocore's errors, which `explain` words, and ValueError for an impossible endpoint.
    """
    session = boto3.Session(profile_name=profile or None, region_name=region or None)
    retries = {"mode": "standard", "total_max_attempts": attempts}
    return session.client(
        service,
        endpoint_url=endpoint_url or None,
        config=Config(retries=retries, **config),
    )


def answer_of(error: BaseException | None) -> Answer:
    """What AWS answered, met directly or by a waiter."""
    if isinstance(error, ClientError):
        found = error.response.get("Error", {})
        return Answer(found.get("Code", ""), found.get("Message", ""), error.operation_name)
    if isinstance(error, WaiterError) and isinstance(error.last_response, dict):
        found = error.last_response.get("Error", {})
        return Answer(found.get("Code", ""), found.get("Message", ""), error.kwargs["name"])
    return Answer()


def explain(error: BaseException, region: str = "") -> str:
    """What happened and what to do, in one line without secrets, where no service knows better."""
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return f"AWS finds no credentials here: {_CREDENTIALS}"
    if isinstance(error, exceptions.TokenRetrievalError | exceptions.SSOError):
        return f"the AWS login of this machine has ended ({error}): log in again"
    if isinstance(error, exceptions.ProfileNotFound):
        return f"{error}: check AWS_PROFILE, the settings and ~/.aws/config"
    if isinstance(error, exceptions.NoRegionError):
        return "AWS needs a region: set AWS_REGION"
    if isinstance(error, exceptions.InvalidRegionError) or not is_known(region):
        known = boto3.Session().get_available_regions("ec2")
        near = did_you_mean(region, known, most=2)
        return f"AWS has no region {region!r} that this boto3 knows{near} ({error})"
    code, _, operation = answer_of(error)
    if code in REJECTED_CREDENTIALS:
        return f"AWS rejects these credentials ({code}): renew them, and check this machine's clock"
    if code:
        return f"{operation} failed ({code})"
    if isinstance(error, CONNECTION):
        return f"it cannot be reached, or does not answer: {error}"
    known_error = isinstance(error, BotoCoreError)
    return f"{type(error).__name__}: {error}" if known_error else type(error).__name__


def is_known(region: str) -> bool:
    """Whether boto3 has heard of a region; True for none."""
    return not region or region in boto3.Session().get_available_regions("ec2")
