"""What AWS refuses, in words that say what to do.

Codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API").
"""

from __future__ import annotations

import boto3
from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from compilewatch.errors import TrainiumError, TrainiumUnavailableError, did_you_mean

CAPACITY = ("InsufficientInstanceCapacity", "InsufficientHostCapacity")
WRONG_STATE = "IncorrectInstanceState"

_FAULT = ("Unavailable", "ServiceUnavailable", "InternalError", "InternalFailure")
_BUSY = (
    *("RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled"),
    *_FAULT,
)
"""Codes that pass by themselves."""

_CONNECTION = (
    exceptions.ConnectionClosedError,
    exceptions.ConnectTimeoutError,
    exceptions.EndpointConnectionError,
    exceptions.ReadTimeoutError,
)

_NO_CREDENTIALS = (
    "AWS knows no credentials of yours here: set AWS_PROFILE or trainium_profile, run `aws sso "
    "login`, or give this machine an instance profile"
)
_NO_RIGHTS = (
    "these credentials may not {action}: let your administrator allow it (docs/trainium.md, Rights)"
)
_NOT_FOUND = "{region} has no such instance ({message}): see trainium_instance and trainium_region"
_BAD_CREDENTIALS = (
    "AWS does not accept these credentials in {region} ({code}): renew them, or see whether "
    "trainium_region is enabled for your account and this machine's clock is right"
)
_QUOTA = (
    "your account's quota forbids it ({message}): ask for a higher one in Service Quotas, "
    "Running On-Demand Trn (or Inf) instances"
)

_MESSAGES = {
    "UnauthorizedOperation": _NO_RIGHTS,
    "AccessDenied": _NO_RIGHTS,
    "InvalidInstanceID.NotFound": _NOT_FOUND,
    "InvalidInstanceID.Malformed": "{message}: an id looks like i-0123456789abcdef0",
    "AuthFailure": _BAD_CREDENTIALS,
    "ExpiredToken": _BAD_CREDENTIALS,
    "InvalidClientTokenId": _BAD_CREDENTIALS,
    "OptInRequired": _BAD_CREDENTIALS,
    "RequestExpired": _BAD_CREDENTIALS,
    "SignatureDoesNotMatch": _BAD_CREDENTIALS,
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
}


def passes(error: BaseException, known_region: bool) -> bool:
    """Whether the same call may succeed a little later.

    An address that cannot be reached is a mistake rather than a fault where nobody has heard of the
    region.
    """
    if isinstance(error, exceptions.EndpointConnectionError):
        return known_region
    return isinstance(error, _CONNECTION) or _refusal(error)[0] in _BUSY


def leaves_doubt(error: BaseException) -> bool:
    """Whether EC2 may have done what was asked although the call failed."""
    return isinstance(error, _CONNECTION) or _refusal(error)[0] in _FAULT


def of(error: Exception, region: str, attempts: int) -> TrainiumError | None:
    """An error of boto3 as one of ours; None for what is neither AWS's nor botocore's."""
    code, message, operation = _refusal(error)
    if code in _BUSY:
        # Without its code, which would mean that nothing has happened.
        return TrainiumUnavailableError(
            f"EC2 could not answer {operation} {attempts} times ({code}): try later"
        )
    if code:
        template = _MESSAGES.get(code, "EC2 refuses {operation}: {code}: {message}")
        # The message of a refused permission holds an encoded blob of kilobytes.
        first = message.splitlines()[0][:300].rstrip(".") if message else code
        said = template.format(
            action=f"ec2:{operation}", code=code, message=first, operation=operation, region=region
        )
        return TrainiumError(said, code)
    if isinstance(error, WaiterError) or not isinstance(error, BotoCoreError):
        return None
    return of_botocore(error, region)


def of_botocore(error: Exception, region: str) -> TrainiumError:
    """What botocore says before, or instead of, an answer of EC2."""
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return TrainiumError(_NO_CREDENTIALS)
    if isinstance(error, (exceptions.TokenRetrievalError, exceptions.SSOError)):
        return TrainiumError(f"the AWS login of this machine has ended ({error}): run it again")
    if isinstance(error, exceptions.NoRegionError):
        return TrainiumError("AWS needs a region: set trainium_region or AWS_REGION")
    if isinstance(error, exceptions.ProfileNotFound):
        return TrainiumError(f"{error}: see trainium_profile, AWS_PROFILE and ~/.aws/config")
    if isinstance(error, (exceptions.InvalidRegionError, exceptions.EndpointConnectionError)):
        return _unreachable(error, region)
    if isinstance(error, _CONNECTION):
        return TrainiumUnavailableError(f"EC2 in {region} does not answer: {error}")
    return TrainiumError(f"AWS cannot be asked: {' '.join(str(error).split())}")


def _unreachable(error: Exception, region: str) -> TrainiumError:
    known = boto3.Session().get_available_regions("ec2")
    if region in known:
        return TrainiumUnavailableError(f"EC2 in {region} cannot be reached: {error}")
    meant = did_you_mean(region, known, most=2)
    return TrainiumError(f"AWS has no region {region!r} that this boto3 knows{meant} ({error})")


def _refusal(error: BaseException) -> tuple[str, str, str]:
    """Code, message and operation of a refusal, met directly or by a waiter; empty for others."""
    if isinstance(error, ClientError):
        said = error.response.get("Error", {})
        return said.get("Code", ""), said.get("Message", ""), error.operation_name
    if isinstance(error, WaiterError) and isinstance(error.last_response, dict):
        said = error.last_response.get("Error", {})
        return said.get("Code", ""), said.get("Message", ""), "DescribeInstances"
    return "", "", ""
