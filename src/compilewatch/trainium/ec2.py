"""One instance of EC2: found, started, stopped. boto3's errors become one line of ours here.

One retry policy holds for every call, so boto3's own is off: what EC2 refuses for the time being is
asked again `Patience.attempts` times in all, with waits that double.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, WaiterError
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
from compilewatch.trainium import refusals

LONGEST_WAIT_SECONDS = 120.0
FIRST_WAIT_SECONDS = 1.0
"""Before a call is repeated that was throttled; capacity takes longer to come back."""

GONE = ("shutting-down", "terminated")

Say = Callable[[str], None]


class Patience(Record, frozen=True, kw_only=True):
    """Limits, in seconds; see the settings `trainium_*`."""

    attempts: int = 5
    poll_seconds: float = 15.0
    ready_seconds: float = 900.0
    stop_seconds: float = 600.0


class Instance(Record, frozen=True, kw_only=True):
    """What EC2 says of an instance. `launched` is when it was last started."""

    id: str
    type: str
    region: str
    zone: str
    state: str
    address: str
    launched: datetime.datetime
    reason: str = ""


class Ec2:
    """EC2 in one region. Every method raises TrainiumError where EC2 refuses for good, and
    TrainiumUnavailableError where it does so, or lets wait, for longer than patience allows.
    """

    def __init__(self, region: str, profile: str, patience: Patience, say: Say) -> None:
        self._patience = patience
        self._say = say
        try:
            self._client = aws.client(
                "ec2", region=region, profile=profile, connect_timeout=10, read_timeout=30
            )
        except (BotoCoreError, ValueError) as error:
            raise refusals.of(error, region) or error from None
        self.region = str(self._client.meta.region_name)
        self._known_region = aws.is_known(self.region)

    def by_id(self, instance: str) -> Instance:
        """The instance with this id; it may be terminated."""
        found = self._describe(InstanceIds=[instance])
        if not found:
            raise TrainiumError(f"EC2 says nothing of {instance} in {self.region}: is it there?")
        return found[0]

    def by_tag(self, tag: str) -> Instance:
        """The one instance with this tag, NAME=VALUE. Raises UsageError for another form."""
        name, equals, value = tag.partition("=")
        if not (name and equals and value):
            raise UsageError(f"trainium_tag: {tag!r} is not of the form NAME=VALUE")
        every = self._describe(Filters=[{"Name": f"tag:{name}", "Values": [value]}])
        living = [found for found in every if found.state not in GONE]
        if len(living) == 1:
            return living[0]
        if living:
            raise UsageError(
                f"{len(living)} instances in {self.region} have the tag {tag}: name one with "
                f"--instance ({', '.join(found.id for found in living)})"
            )
        gone = f" ({every[0].id} had it and is terminated)" if every else ""
        raise TrainiumError(
            f"no instance in {self.region} has the tag {tag}{gone}: tag one, name it with "
            "--instance, or see trainium.region"
        )

    def start(self, instance: Instance) -> bool:
        """Start it, after it has stopped if it is stopping. Whether this call did: of two that
        start it at once, EC2 tells one that it was stopped and the other that it is starting.
        """
        retrying = Retrying(
            retry=retry_if_exception(_may_start_later),
            stop=stop_after_attempt(self._patience.attempts),
            wait=wait_exponential(self._patience.poll_seconds, max=LONGEST_WAIT_SECONDS),
            before_sleep=lambda state: self._say(f"{_failure(state)}; asking again"),
            reraise=True,
        )
        try:
            return bool(retrying(self._start_once, instance))
        except TrainiumError as error:
            if error.code not in refusals.CAPACITY:
                raise
            raise TrainiumUnavailableError(
                f"EC2 has no {instance.type} to give in {instance.zone} now (asked "
                f"{self._patience.attempts} times): try later, or move it to another zone",
                error.code,
            ) from None

    def wait_ready(self, instance: str) -> None:
        """Until it runs and has passed the checks of its host and of itself."""
        seconds = self._patience.ready_seconds
        self._wait("instance_running", instance, seconds, "run")
        self._wait("system_status_ok", instance, seconds, "pass its host's status check")
        self._wait("instance_status_ok", instance, seconds, "pass its own status check")

    def stop(self, instance: str) -> None:
        """Ask for the stop. One that is only starting cannot be stopped yet: it is asked again."""
        Retrying(
            retry=retry_if_exception(lambda error: _code(error) == refusals.WRONG_STATE),
            stop=stop_after_delay(self._patience.stop_seconds),
            wait=wait_fixed(self._patience.poll_seconds),
            reraise=True,
        )(self._call, lambda: self._client.stop_instances(InstanceIds=[instance]))

    def wait_stopped(self, instance: str) -> None:
        self._wait("instance_stopped", instance, self._patience.stop_seconds, "stop")

    def checks(self, instance: str) -> str:
        """The two status checks in EC2's words: `ok`, or what is not."""
        answer = self._call(
            lambda: self._client.describe_instance_status(
                InstanceIds=[instance], IncludeAllInstances=True
            )
        )
        for status in answer["InstanceStatuses"]:
            states = {status["SystemStatus"]["Status"], status["InstanceStatus"]["Status"]}
            return ", ".join(sorted(states - {"ok"})) or "ok"
        return "unknown"

    def _start_once(self, instance: Instance) -> bool:
        if self.by_id(instance.id).state == "stopping":
            self._say(f"{instance.id} is stopping: waiting until it has")
            self.wait_stopped(instance.id)
        doubts: list[BaseException] = []

        def ask() -> Any:
            try:
                return self._client.start_instances(InstanceIds=[instance.id])
            except Exception as error:
                if refusals.leaves_doubt(error):
                    doubts.append(error)
                raise

        (change,) = self._call(ask)["StartingInstances"]
        # After an answer that was lost EC2 says `pending`, which may be our own doing: better to
        # stop what another run has started than to let it run on with nobody to stop it.
        return bool(doubts) or change["PreviousState"]["Name"] == "stopped"

    def _describe(self, **chosen: Any) -> list[Instance]:
        pages = self._client.get_paginator("describe_instances")
        answers = self._call(lambda: list(pages.paginate(**chosen)))
        return [
            _instance(raw, self.region)
            for answer in answers
            for reservation in answer["Reservations"]
            for raw in reservation["Instances"]
        ]

    def _wait(self, waiter: str, instance: str, seconds: float, what: str) -> None:
        """One of boto3's waiters, at our pace."""
        config = {
            "Delay": self._patience.poll_seconds,
            "MaxAttempts": max(1, math.ceil(seconds / self._patience.poll_seconds)),
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
        """Run a call of boto3: retried while that may help, then its error as ours.

        A WaiterError that holds no refusal of EC2 is left to the caller.
        """
        first = min(FIRST_WAIT_SECONDS, self._patience.poll_seconds)
        retrying = Retrying(
            retry=retry_if_exception(lambda error: refusals.passes(error, self._known_region)),
            stop=stop_after_attempt(self._patience.attempts),
            wait=wait_exponential(first, max=LONGEST_WAIT_SECONDS),
            reraise=True,
        )
        try:
            return retrying(call)
        except Exception as error:
            mapped = refusals.of(error, self.region, self._patience.attempts)
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
    return _code(error) in (*refusals.CAPACITY, refusals.WRONG_STATE)


def _failure(state: Any) -> str:
    return str(state.outcome.exception())
