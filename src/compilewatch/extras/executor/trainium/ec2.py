"""One EC2 instance: find it, start it, stop it. Converts errors of boto3 to ours.

One retry policy applies to every call, so boto3's own is disabled: a call that EC2 rejects
temporarily is made `InstanceLimits.attempts` times in total, with waits that double.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, EndpointConnectionError, WaiterError
from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
)

from compilewatch import aws
from compilewatch.errors import TrainiumError, TrainiumUnavailableError, UsageError
from compilewatch.records import Record

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
        text = template.format(
            action=f"ec2:{operation}", code=code, message=first, operation=operation, region=region
        )
        return TrainiumError(text, code)
    if isinstance(error, WaiterError) or not isinstance(error, BotoCoreError | ValueError):
        return None
    if isinstance(error, aws.CONNECTION) and aws.is_known(region):
        return TrainiumUnavailableError(f"EC2 in {region} cannot be reached: {error}")
    hint = "; see trainium.profile and trainium.region" if not region else ""
    return TrainiumError(f"{aws.explain(error, region)}{hint}")


LONGEST_WAIT_SECONDS = 120.0
FIRST_WAIT_SECONDS = 1.0
"""Wait before a throttled call is repeated; a lack of capacity lasts longer."""

GONE = ("shutting-down", "terminated")

Say = Callable[[str], None]


class InstanceLimits(Record, frozen=True, kw_only=True):
    """Limits, in seconds; see the settings `trainium_*`."""

    attempts: int = 5
    poll_seconds: float = 15.0
    ready_seconds: float = 900.0
    stop_seconds: float = 600.0


class Instance(Record, frozen=True, kw_only=True):
    """The state of an instance in EC2. `launched` is the time of its last start."""

    id: str
    type: str
    region: str
    zone: str
    state: str
    address: str
    launched: datetime.datetime
    reason: str = ""


class Ec2:
    """EC2 in one region. Every method raises TrainiumError if EC2 rejects it permanently, and
    TrainiumUnavailableError if it exceeds the limits.
    """

    def __init__(self, region: str, profile: str, limits: InstanceLimits, say: Say) -> None:
        self._limits = limits
        self._say = say
        try:
            self._client = aws.client(
                "ec2", region=region, profile=profile, connect_timeout=10, read_timeout=30
            )
        except (BotoCoreError, ValueError) as error:
            raise of(error, region) or error from None
        self.region = str(self._client.meta.region_name)
        self._known_region = aws.is_known(self.region)

    def by_id(self, instance: str) -> Instance:
        """Return the instance with this id; it may be terminated."""
        instances = self._describe(InstanceIds=[instance])
        if not instances:
            raise TrainiumError(f"EC2 in {self.region} reports no {instance}: is it there?")
        return instances[0]

    def by_tag(self, tag: str) -> Instance:
        """Return the instance with this tag, NAME=VALUE. Raises UsageError for another form."""
        name, equals, value = tag.partition("=")
        if not (name and equals and value):
            raise UsageError(f"trainium_tag: {tag!r} is not of the form NAME=VALUE")
        every = self._describe(Filters=[{"Name": f"tag:{name}", "Values": [value]}])
        living = [candidate for candidate in every if candidate.state not in GONE]
        if len(living) == 1:
            return living[0]
        if living:
            raise UsageError(
                f"{len(living)} instances in {self.region} have the tag {tag}: name one with "
                f"--instance ({', '.join(candidate.id for candidate in living)})"
            )
        terminated = f" ({every[0].id} had it and is terminated)" if every else ""
        raise TrainiumError(
            f"no instance in {self.region} has the tag {tag}{terminated}: tag one, name it with "
            "--instance, or see trainium.region"
        )

    def start(self, instance: Instance) -> bool:
        """Start the instance, once it has stopped if it is stopping; return whether this call did.

        If two calls start it at once, EC2 reports to one that it was stopped and to the other that
        it is starting.
        """
        retrying = Retrying(
            retry=retry_if_exception(_may_start_later),
            stop=stop_after_attempt(self._limits.attempts),
            wait=wait_exponential(self._limits.poll_seconds, max=LONGEST_WAIT_SECONDS),
            before_sleep=lambda state: self._say(f"{_failure(state)}; trying again"),
            reraise=True,
        )
        try:
            return bool(retrying(self._start_once, instance))
        except TrainiumError as error:
            if error.code not in CAPACITY:
                raise
            raise TrainiumUnavailableError(
                f"EC2 has no capacity for {instance.type} in {instance.zone} now (tried "
                f"{self._limits.attempts} times): try later, or move it to another zone",
                error.code,
            ) from None

    def wait_ready(self, instance: str) -> None:
        """Wait until it is running and has passed the checks of its host and of itself."""
        seconds = self._limits.ready_seconds
        self._wait("instance_running", instance, seconds, "run")
        self._wait("system_status_ok", instance, seconds, "pass its host's status check")
        self._wait("instance_status_ok", instance, seconds, "pass its own status check")

    def stop(self, instance: str) -> None:
        """Request the stop, and repeat the request while the instance is only starting."""
        Retrying(
            retry=retry_if_exception(lambda error: _code(error) == WRONG_STATE),
            stop=stop_after_delay(self._limits.stop_seconds),
            wait=wait_fixed(self._limits.poll_seconds),
            reraise=True,
        )(self._call, lambda: self._client.stop_instances(InstanceIds=[instance]))

    def wait_stopped(self, instance: str) -> None:
        self._wait("instance_stopped", instance, self._limits.stop_seconds, "stop")

    def checks(self, instance: str) -> str:
        """Return the states of the two status checks that are not `ok`, or `ok`."""
        response = self._call(
            lambda: self._client.describe_instance_status(
                InstanceIds=[instance], IncludeAllInstances=True
            )
        )
        for status in response["InstanceStatuses"]:
            states = {status["SystemStatus"]["Status"], status["InstanceStatus"]["Status"]}
            return ", ".join(sorted(states - {"ok"})) or "ok"
        return "unknown"

    def _start_once(self, instance: Instance) -> bool:
        if self.by_id(instance.id).state == "stopping":
            self._say(f"waiting until {instance.id} has stopped")
            self.wait_stopped(instance.id)
        doubts: list[BaseException] = []

        def request() -> Any:
            try:
                return self._client.start_instances(InstanceIds=[instance.id])
            except Exception as error:
                if leaves_doubt(error):
                    doubts.append(error)
                raise

        (change,) = self._call(request)["StartingInstances"]
        # If the response was lost, EC2 reports `pending`, which may be due to this call. Stopping
        # an instance that another run started is better than leaving one running that nothing
        # stops.
        return bool(doubts) or change["PreviousState"]["Name"] == "stopped"

    def _describe(self, **chosen: Any) -> list[Instance]:
        pages = self._client.get_paginator("describe_instances")
        responses = self._call(lambda: list(pages.paginate(**chosen)))
        return [
            _instance(raw, self.region)
            for response in responses
            for reservation in response["Reservations"]
            for raw in reservation["Instances"]
        ]

    def _wait(self, waiter: str, instance: str, seconds: float, what: str) -> None:
        """Use one of boto3's waiters, with our own polling interval and time limit."""
        config = {
            "Delay": self._limits.poll_seconds,
            "MaxAttempts": max(1, math.ceil(seconds / self._limits.poll_seconds)),
        }
        wait = self._client.get_waiter(waiter).wait
        try:
            self._call(lambda: wait(InstanceIds=[instance], WaiterConfig=config))
        except WaiterError:
            now = self.by_id(instance)
            because = f" ({now.reason})" if now.reason else ""
            raise TrainiumUnavailableError(
                f"{instance} did not {what} within {seconds:g} s: it is {now.state}{because}, its "
                f"checks: {self.checks(instance)}; see its page in EC2's console"
            ) from None

    def _call(self, call: Callable[[], Any]) -> Any:
        """Make a call of boto3, with retries for temporary errors; convert its error to ours.

        A WaiterError without an error of EC2 is left to the caller.
        """
        first = min(FIRST_WAIT_SECONDS, self._limits.poll_seconds)
        retrying = Retrying(
            retry=retry_if_exception(lambda error: passes(error, self._known_region)),
            stop=stop_after_attempt(self._limits.attempts),
            wait=wait_exponential(first, max=LONGEST_WAIT_SECONDS),
            reraise=True,
        )
        try:
            return retrying(call)
        except Exception as error:
            mapped = of(error, self.region, self._limits.attempts)
            if mapped is None:
                raise
            raise mapped from None


def _instance(raw: dict[str, Any], region: str) -> Instance:
    return Instance(
        id=raw["InstanceId"],
        type=raw["InstanceType"],
        region=region,
        zone=raw.get("Placement", {}).get("AvailabilityZone", region),
        state=raw["State"]["Name"],
        address=_address(raw),
        launched=raw["LaunchTime"],
        reason=raw.get("StateReason", {}).get("Message", ""),
    )


def _address(raw: dict[str, Any]) -> str:
    return raw.get("PublicIpAddress") or raw.get("PrivateIpAddress") or ""


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, TrainiumError) else ""


def _may_start_later(error: BaseException) -> bool:
    return _code(error) in (*CAPACITY, WRONG_STATE)


def _failure(state: Any) -> str:
    return str(state.outcome.exception())
