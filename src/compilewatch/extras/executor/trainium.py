"""The Trainium instance: started for a run, stopped after it, and its cost.

`Ec2` makes every call of AWS, `Agent` checks whether the instance can be used, an `InstanceSession`
stores what a run has started, and `Operation` combines them to up, down and status. `OnDemand`
starts the instance of an executor with the first work and stops it when nobody has any.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from botocore.exceptions import BotoCoreError, EndpointConnectionError, WaiterError
from msgspec import Meta
from tenacity import (
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
)

from compilewatch import aws, data
from compilewatch.config import Settings, cache_folder
from compilewatch.errors import (
    CompilewatchError,
    ExecutorError,
    ExecutorUnavailableError,
    TrainiumError,
    TrainiumUnavailableError,
    UsageError,
)
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.protocol import ErrorCode
from compilewatch.extras.executor.settings import TrainiumSettings
from compilewatch.files import lock
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

    def __init__(self, region: str, settings: TrainiumSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        try:
            self._client = aws.client(
                "ec2", region=region, profile=settings.profile, connect_timeout=10, read_timeout=30
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
            retry=retry_if_exception(lambda error: _code(error) in (*CAPACITY, WRONG_STATE)),
            stop=stop_after_attempt(self._settings.attempts),
            wait=wait_exponential(self._settings.poll_seconds, max=LONGEST_WAIT_SECONDS),
            before_sleep=lambda state: self._say(
                f"{state.outcome and state.outcome.exception()}; trying again"
            ),
            reraise=True,
        )
        try:
            return bool(retrying(self._start_once, instance))
        except TrainiumError as error:
            if error.code not in CAPACITY:
                raise
            raise TrainiumUnavailableError(
                f"EC2 has no capacity for {instance.type} in {instance.zone} now (tried "
                f"{self._settings.attempts} times): try later, or move it to another zone",
                error.code,
            ) from None

    def wait_ready(self, instance: str) -> None:
        """Wait until it is running and has passed the checks of its host and of itself."""
        seconds = self._settings.ready_seconds
        self._wait("instance_running", instance, seconds, "run")
        self._wait("system_status_ok", instance, seconds, "pass its host's status check")
        self._wait("instance_status_ok", instance, seconds, "pass its own status check")

    def stop(self, instance: str) -> None:
        """Request the stop, and repeat the request while the instance is only starting."""
        Retrying(
            retry=retry_if_exception(lambda error: _code(error) == WRONG_STATE),
            stop=stop_after_delay(self._settings.stop_seconds),
            wait=wait_fixed(self._settings.poll_seconds),
            reraise=True,
        )(self._call, lambda: self._client.stop_instances(InstanceIds=[instance]))

    def wait_stopped(self, instance: str) -> None:
        self._wait("instance_stopped", instance, self._settings.stop_seconds, "stop")

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
            "Delay": self._settings.poll_seconds,
            "MaxAttempts": max(1, math.ceil(seconds / self._settings.poll_seconds)),
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
        first = min(FIRST_WAIT_SECONDS, self._settings.poll_seconds)
        retrying = Retrying(
            retry=retry_if_exception(lambda error: passes(error, self._known_region)),
            stop=stop_after_attempt(self._settings.attempts),
            wait=wait_exponential(first, max=LONGEST_WAIT_SECONDS),
            reraise=True,
        )
        try:
            return retrying(call)
        except Exception as error:
            mapped = of(error, self.region, self._settings.attempts)
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
        address=raw.get("PublicIpAddress") or raw.get("PrivateIpAddress") or "",
        launched=raw["LaunchTime"],
        reason=raw.get("StateReason", {}).get("Message", ""),
    )


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, TrainiumError) else ""


MINIMUM_SECONDS = 60.0
"""EC2 bills Linux per second, with this minimum after each start (StartInstances)."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: US dollars per hour for one instance type in some regions."""

    instance_type: str
    regions: Annotated[tuple[str, ...], Meta(min_length=1)]
    usd_per_hour: Annotated[float, Meta(gt=0)]
    date: datetime.date
    source: Annotated[str, Meta(min_length=1)]

    def cost(self, seconds: float) -> float:
        """Return US dollars for an instance that has run for `seconds`, without its disks."""
        return max(seconds, MINIMUM_SECONDS) / 3600 * self.usd_per_hour


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`trainium_prices.toml`."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    price: tuple[Price, ...] = ()


def price_of(file: Path, instance_type: str, region: str) -> Price | None:
    """Return the newest price of a type in a region, of a project's own file if it has one.

    None without a row. Raises ConfigError for a malformed file.
    """

    def fits(row: Price) -> bool:
        return row.instance_type == instance_type and region in row.regions

    files = data.read(file, data.TRAINIUM_PRICES, Prices)
    fitting = next((f for f in (list(filter(fits, file.price)) for file in files) if f), [])
    return max(fitting, key=lambda row: row.date, default=None)


class InstanceSession(Record, frozen=True, kw_only=True):
    """One `up` without its `down` so far.

    `started`: this run started the instance; stored before EC2 is called, so that even a killed
    `up` is recorded. `launched` is EC2's time of that start, empty until it is known: another time
    means that another user has restarted the instance since, so this run must not stop it.
    """

    instance: str
    region: str
    started: bool
    since: datetime.datetime = msgspec.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC)
    )
    launched: datetime.datetime | None = None
    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1

    def seconds(self) -> float:
        """Return the age of the session in seconds."""
        return (datetime.datetime.now(datetime.UTC) - self.since).total_seconds()


def read(file: Path) -> InstanceSession | None:
    """Return the stored session, if any. Raises TrainiumError for a file of another format."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=InstanceSession)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainiumError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TrainiumError(
            f"{file} is not a state file of compilewatch trainium ({error}): use another --state, "
            "or check in EC2 whether the instance is running and delete the file"
        ) from None


def write(file: Path, session: InstanceSession) -> None:
    """Replace the file atomically. Raises TrainiumError."""
    try:
        new = file.with_name(f"{file.name}.new")
        new.write_bytes(msgspec.json.encode(session) + b"\n")
        new.replace(file)
    except OSError as error:
        raise TrainiumError(f"{file} cannot be written: {error.strerror}") from None


def end(file: Path, session: InstanceSession | None) -> None:
    """Delete the session's file, if it is that of this session."""
    if session is not None:
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(file: Path, seconds: float, say: Callable[[str], None]) -> Iterator[None]:
    """Lock a session's file, so that `up` and `down` of one run do not overlap.

    Raises TrainiumUnavailableError if another process holds the lock for longer than `seconds`.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock_file = file.with_name(f"{file.name}.lock").open("w")
    except OSError as error:
        raise TrainiumError(f"{error.filename} cannot be written: {error.strerror}") from None
    with lock_file:
        waiting = partial(say, "waiting for another compilewatch trainium to end")
        if not lock(lock_file.fileno(), seconds=seconds, on_wait=waiting):
            raise TrainiumUnavailableError(
                f"another compilewatch trainium has held {file} for {seconds:g} s: wait for it, "
                "or end it"
            )
        yield


CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 60.0


class Agent(Record, frozen=True, kw_only=True):
    """The address of the agent's SSH server, and a shell command that must succeed, if any."""

    instance: str
    host: str
    port: int
    command: str = ""

    def problem(self) -> str:
        """Return why the agent is not ready, in a few words; empty if it is."""
        return self._no_banner() or self._command_fails()

    def wait(self, seconds: float, poll_seconds: float) -> None:
        """Wait until the agent is ready. Raises TrainiumUnavailableError after `seconds`."""
        problem = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(seconds),
            wait=wait_fixed(poll_seconds),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )(self.problem)
        if problem:
            raise TrainiumUnavailableError(
                f"{self.instance} runs, but its agent did not respond on {self.host}:{self.port} "
                f"within {seconds:g} s: {problem}; check that its security group admits this "
                "machine, and check trainium.host"
            )

    def _no_banner(self) -> str:
        # An SSH server sends first (RFC 4253, 4.2), so an open port alone is not sufficient.
        try:
            with socket.create_connection((self.host, self.port), CONNECT_SECONDS) as connection:
                banner = connection.recv(4)
        except OSError as error:
            return (error.strerror or str(error)).lower()
        return "" if banner == b"SSH-" else "not an SSH server"

    def _command_fails(self) -> str:
        if not self.command:
            return ""
        variables: dict[str, Any] = {
            "TRAINIUM_HOST": self.host,
            "TRAINIUM_PORT": str(self.port),
            "TRAINIUM_INSTANCE": self.instance,
        }
        try:
            done = subprocess.run(
                ["sh", "-c", self.command],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"trainium_ready_command took more than {COMMAND_SECONDS:g} s"
        if done.returncode == 0:
            return ""
        output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        return f"trainium_ready_command ended with {done.returncode}: {output}"


class InstanceReport(Record, frozen=True, kw_only=True):
    """The output of `--json`.

    `action` is what was done: `started`, `joined` (it was running), `stopped`, `was stopped`,
    `left` (running, not started by this run), `nothing`. `started_by_run`: `down` stops it.
    `problem` says why the agent cannot be used; empty if it can, None if this was not checked.
    `seconds` is how long this run has had the instance (`status` without a run: since its start);
    `usd` is the cost, None if the price is unknown or this run did not start the instance.
    """

    action: str
    instance: str = ""
    type: str = ""
    region: str = ""
    state: str = ""
    checks: str = ""
    host: str = ""
    port: int = 0
    problem: str | None = None
    started_by_run: bool = False
    price: Price | None = None
    seconds: float | None = None
    usd: float | None = None

    @property
    def ready(self) -> bool:
        return self.state == "running" and self.problem == ""


class Operation:
    """The verbs, for the state file of one run. `say` prints lines of progress."""

    def __init__(self, settings: Settings, state: Path, say: Say) -> None:
        self._settings = settings.of(TrainiumSettings)
        self._state = state
        self._say = say

    def up(self) -> InstanceReport:
        """Start the instance unless it runs, wait for its agent, and record who started it.

        If this fails or is interrupted after starting the instance, the instance is stopped again.
        """
        with self._locked():
            ec2 = self._ec2(self._settings.region)
            current = self._find(ec2)
            known = self._other_than(current, read(self._state))
            if current.state in ("running", "pending"):
                known = known or InstanceSession(
                    instance=current.id, region=current.region, started=False
                )
                write(self._state, known)
                self._say(f"{current.id} is {current.state} already")
                return self._ready(ec2, current, known, "joined")
            return self._started(ec2, current)

    def down(self, *, force: bool = False, wait: bool = True) -> InstanceReport:
        """Stop what this run started, or with `force` the instance regardless of who started it."""
        with self._locked():
            known = read(self._state)
            if known is None and not force:
                return InstanceReport(action="nothing")
            if known is not None and not known.started and not force:
                self._state.unlink(missing_ok=True)
                return InstanceReport(action="left", instance=known.instance, region=known.region)
            ec2, current = self._meant(known, force=force)
            if known is not None and known.instance != current.id:
                known = None
            if current.state in ("stopped", *GONE):
                end(self._state, known)
                return self._report("was stopped", current, known)
            if known and known.launched not in (None, current.launched) and not force:
                end(self._state, known)
                self._say(f"{current.id} was stopped and started by another user in the meantime")
                return self._report("left", current, None)
            self._say(f"stopping {current.id}")
            ec2.stop(current.id)
            end(self._state, known)
            report = self._report("stopped", current, known)
            if wait:
                ec2.wait_stopped(current.id)
            state = "stopped" if wait else "stopping"
            return msgspec.structs.replace(report, state=state)

    def started_here(self) -> bool:
        """Whether this run has started an instance and not stopped it."""
        known = read(self._state)
        return known is not None and known.started

    def status(self) -> InstanceReport:
        """Report the current state. Starts and stops nothing."""
        known = read(self._state)
        ec2 = self._ec2(self._settings.region)
        current = self._find(ec2)
        if known is not None and known.instance != current.id:
            known = None
        report = self._report("nothing", current, known)
        if current.state != "running":
            return report
        if known is None or not known.started:
            now = datetime.datetime.now(datetime.UTC)
            ran = (now - current.launched).total_seconds()
            usd = report.price.cost(ran) if report.price else None
            report = msgspec.structs.replace(report, seconds=ran, usd=usd)
        agent = self._agent(current)
        problem = agent.problem() if agent.host else "no address: set trainium.host"
        return msgspec.structs.replace(report, checks=ec2.checks(current.id), problem=problem)

    def _started(self, ec2: Ec2, current: Instance) -> InstanceReport:
        # Written first, so that `down` finds the instance of a killed `up`.
        known = InstanceSession(instance=current.id, region=current.region, started=True)
        write(self._state, known)
        try:
            try:
                ours = ec2.start(current)
            except TrainiumError as error:
                # An error code of EC2 means that the call had no effect.
                known = msgspec.structs.replace(known, started=not error.code)
                raise
            known = msgspec.structs.replace(known, started=ours)
            write(self._state, known)
            self._say(f"{current.id} is starting: waiting for its status checks")
            return self._ready(ec2, current, known, "started" if ours else "joined")
        except BaseException:
            if known.started:
                self._stop_again(ec2, current.id)
            else:
                self._state.unlink(missing_ok=True)
            raise

    def _ready(
        self, ec2: Ec2, current: Instance, known: InstanceSession, action: str
    ) -> InstanceReport:
        ec2.wait_ready(current.id)
        current = ec2.by_id(current.id)
        if known.started and known.launched is None:
            known = msgspec.structs.replace(known, launched=current.launched)
            write(self._state, known)
        agent = self._agent(current)
        if not agent.host:
            raise TrainiumError(f"{current.id} has no address: set trainium.host")
        self._say(f"waiting for the agent on {agent.host}:{agent.port}")
        agent.wait(self._settings.ready_seconds, self._settings.poll_seconds)
        report = self._report(action, current, known)
        return msgspec.structs.replace(report, checks="ok", problem="")

    def _stop_again(self, ec2: Ec2, instance: str) -> None:
        with _undisturbed():
            self._say(f"stopping {instance} again, because this run started it")
            try:
                ec2.stop(instance)
            except TrainiumError as error:
                self._say(f"{instance} MAY STILL RUN: {error}; run: compilewatch trainium down")
                return
            self._state.unlink(missing_ok=True)

    def _other_than(
        self, current: Instance, known: InstanceSession | None
    ) -> InstanceSession | None:
        """Return the existing session if it is about this start of this instance.

        Raises UsageError if this run has started another instance and not stopped it.
        """
        if known is None or not known.started:
            return None
        if known.instance != current.id:
            raise UsageError(
                f"this run has started {known.instance} and not stopped it: run compilewatch "
                "trainium down first, or use another --state"
            )
        return known if known.launched in (None, current.launched) else None

    def _meant(self, known: InstanceSession | None, *, force: bool) -> tuple[Ec2, Instance]:
        """Return the instance for `down`: this run's, or with `force` that of the settings."""
        if known is None or force:
            ec2 = self._ec2(self._settings.region)
            return ec2, self._find(ec2)
        ec2 = self._ec2(known.region)
        try:
            return ec2, ec2.by_id(known.instance)
        except TrainiumError as error:
            if error.code == "InvalidInstanceID.NotFound":
                end(self._state, known)
            raise

    def _find(self, ec2: Ec2) -> Instance:
        instance_id = self._settings.instance
        current = ec2.by_id(instance_id) if instance_id else ec2.by_tag(self._settings.tag)
        if current.state in GONE:
            raise TrainiumError(f"{current.id} is terminated: create another and name it")
        return current

    def _agent(self, current: Instance) -> Agent:
        return Agent(
            instance=current.id,
            host=self._settings.host or current.address,
            port=self._settings.ssh_port,
            command=self._settings.ready_command,
        )

    def _report(
        self, action: str, current: Instance, known: InstanceSession | None
    ) -> InstanceReport:
        prices = Path(self._settings.prices_file)
        price = price_of(prices, current.type, current.region)
        ours = known is not None and known.started
        seconds = known.seconds() if known else None
        agent = self._agent(current)
        return InstanceReport(
            action=action,
            instance=current.id,
            type=current.type,
            region=current.region,
            state=current.state,
            host=agent.host,
            port=agent.port,
            started_by_run=ours,
            price=price,
            seconds=seconds,
            usd=price.cost(seconds) if price and ours and seconds is not None else None,
        )

    def _ec2(self, region: str) -> Ec2:
        return Ec2(region, self._settings, self._say)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        # An `up` may take three times ready_seconds: start, checks, agent.
        seconds = 3 * self._settings.ready_seconds + self._settings.stop_seconds
        return locked(self._state, seconds, self._say)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM: Ctrl-C often comes twice, and the end of a build adds SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before: list[Callable[..., object] | int | None] = [
        signal.signal(number, signal.SIG_IGN) for number in signals
    ]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


WAIT_SECONDS = 3600.0
POLL_SECONDS = 15.0


class OnDemand:
    """An instance that is started with the first work, and stopped when all work has ended.

    `start` can be called by several threads. If the instance cannot be started, each of them gets
    the same error, and it is not tried again.
    """

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """Prepare it; `make` returns the context in which the instance runs, see `running`."""
        self._make = make
        self._held = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._started = False
        self._error: CompilewatchError | None = None

    def start(self) -> None:
        """Start the instance unless this has been done. Raises TrainiumError or ExecutorError."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._started:
                return
            try:
                self._held.enter_context(self._make())
            except CompilewatchError as error:
                self._error = error
                raise
            self._started = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._held.close()


def instance_of(
    settings: Settings,
    client: ExecutorClient,
    say: Callable[[str], None],
    state: Path | None = None,
) -> contextlib.AbstractContextManager[None]:
    """The context in which the instance of the settings runs; `say` prints lines of progress.

    `state` is the file that says who has started it; None: the one in the cache folder.
    """
    place = state or (settings.cache_folder or cache_folder()) / "trainium.json"
    return running(Operation(settings, place, say), client, say)


@contextlib.contextmanager
def running(
    operation: Operation,
    client: ExecutorClient,
    say: Callable[[str], None],
    *,
    wait_seconds: float = WAIT_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[None]:
    """Start the instance for the time of the context, and stop it if this started it.

    It is not stopped while a job of anybody runs or waits: that is waited for, and after
    `wait_seconds` the instance is left to its own idle timer.
    """
    ours = operation.up().started_by_run
    try:
        client.health()
        yield
    finally:
        if not ours:
            operation.down()
        else:
            until = time.monotonic() + wait_seconds
            while (reason := hold(client)) is not None and time.monotonic() <= until:
                say(f"the instance is stopped later, because {reason}")
                time.sleep(poll_seconds)
            if reason is None:
                _stop(operation, client)
            else:
                say(
                    f"the instance keeps running, because {reason}; it stops itself when it is idle"
                )


def _stop(operation: Operation, client: ExecutorClient) -> None:
    """Stop the instance; if it keeps running, its service takes jobs again."""
    stopped = False
    try:
        stopped = operation.down().action != "left"
    finally:
        if not stopped:
            with contextlib.suppress(ExecutorError):
                client.undrain()


def hold(client: ExecutorClient) -> str | None:
    """Let the service take no more jobs. Returns why the instance must not be stopped, else None.

    A service that does not respond is not idle.
    """
    try:
        client.drain()
    except ExecutorUnavailableError as error:
        return str(error)
    except ExecutorError as error:
        if error.code != ErrorCode.CONFLICT:
            raise
        return str(error)
    return None
