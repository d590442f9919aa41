"""Errors of EC2, with messages that say what to do."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, EndpointConnectionError, WaiterError

from compilewatch import aws
from compilewatch.errors import TrainiumError, TrainiumUnavailableError

CAPACITY = ("InsufficientInstanceCapacity", "InsufficientHostCapacity")
WRONG_STATE = "IncorrectInstanceState"

_NOT_FOUND = "{region} has no such instance ({message}): see trainium.instance and trainium.region"
_QUOTA = (
    "your account's quota forbids it ({message}): ask for a higher one in Service Quotas, "
    "Running On-Demand Trn (or Inf) instances"
)
_MESSAGES = {
    **dict.fromkeys(
        aws.DENIED,
        "these credentials may not {action}: ask your administrator to allow it (docs/trainium.md, "
        "Rights)",
    ),
    **dict.fromkeys(
        aws.REJECTED_CREDENTIALS,
        "AWS rejects these credentials in {region} ({code}): renew them, or check whether "
        "trainium_region is enabled for your account and whether this machine's clock is correct",
    ),
    "InvalidInstanceID.NotFound": _NOT_FOUND,
    "InvalidInstanceID.Malformed": "{message}: an id looks like i-0123456789abcdef0",
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
}


def passes(error: BaseException, known_region: bool) -> bool:
    """Whether the same call may succeed later.

    If the region is unknown, an address that cannot be reached is a mistake and not an outage.
    """
    if isinstance(error, EndpointConnectionError):
        return known_region
    return isinstance(error, aws.CONNECTION) or aws.error_details(error).code in aws.BUSY


def leaves_doubt(error: BaseException) -> bool:
    """Whether EC2 may have executed the call although it failed."""
    return isinstance(error, aws.CONNECTION) or aws.error_details(error).code in aws.FAULTS


def of(error: BaseException, region: str, attempts: int = 1) -> TrainiumError | None:
    """Convert an error of boto3; None for errors of neither AWS nor botocore."""
    code, message, operation = aws.error_details(error)
    if code in aws.BUSY:
        # Without its code, which would mean that the call had no effect.
        return TrainiumUnavailableError(
            f"EC2 failed {attempts} times to respond to {operation} ({code}): try later"
        )
    if code:
        template = _MESSAGES.get(code, "EC2 rejects {operation}: {code}: {message}")
        # The message of a denied permission contains an encoded text of several kilobytes.
        first = message.splitlines()[0][:300].rstrip(".") if message else code
        said = template.format(
            action=f"ec2:{operation}", code=code, message=first, operation=operation, region=region
        )
        return TrainiumError(said, code)
    if isinstance(error, WaiterError) or not isinstance(error, BotoCoreError | ValueError):
        return None
    if isinstance(error, aws.CONNECTION) and aws.is_known(region):
        return TrainiumUnavailableError(f"EC2 in {region} cannot be reached: {error}")
    hint = "; see trainium.profile and trainium.region" if not region else ""
    return TrainiumError(f"{aws.explain(error, region)}{hint}")
