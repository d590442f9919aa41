"""The Trainium instance: started for a run, stopped after it, and its cost.

`Ec2` makes every call of AWS, an `InstanceSession` is what a run has started, and `Operation`
combines them to up, down and status. `on_demand` starts the instance of an executor with the first
work and stops it when nobody has any.
"""

import contextlib
import datetime
import functools
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tenacity
from botocore.exceptions import BotoCoreError, WaiterError
from msgspec import Meta

from compilewatch import aws, data, errors
from compilewatch.config import Settings, TrainiumSettings, cache_folder
from compilewatch.errors import TrainiumError, TrainiumUnavailableError, UsageError
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.files import lock, replace
from compilewatch.records import Record

CAPACITY = ("InsufficientInstanceCapacity", "InsufficientHostCapacity")
WRONG_STATE = "IncorrectInstanceState"
GONE = ("shutting-down", "terminated")

LONGEST_WAIT_SECONDS = 120.0
FIRST_WAIT_SECONDS = 1.0
"""Wait before a throttled call is repeated; a lack of capacity lasts longer."""

Say = Callable[[str], None]

_NOT_FOUND = "{region} has no such instance ({message}): see trainium.instance and trainium.region"
_QUOTA = (
    "your account's quota forbids it ({message}): ask for a higher one in Service Quotas, "
    "Running On-Demand Trn (or Inf) instances"
)
_MESSAGES = {
    **dict.fromkeys(
        aws.DENIED,
        "these credentials may not ec2:{operation}: ask your administrator to allow it "
        "(docs/trainium.md, Rights)",
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


def passes(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    return isinstance(error, aws.CONNECTION) or aws.error_details(error).code in aws.BUSY


def explained(error: BaseException, region: str, attempts: int = 1) -> TrainiumError | None:
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
        text = template.format(code=code, message=first, operation=operation, region=region)
        return TrainiumError(text, code)
    if isinstance(error, WaiterError) or not isinstance(error, BotoCoreError | ValueError):
        return None
    if isinstance(error, aws.CONNECTION) and aws.is_known(region):
        return TrainiumUnavailableError(f"EC2 in {region} cannot be reached: {error}")
    hint = "; see trainium.profile and trainium.region" if not region else ""
    return TrainiumError(f"{aws.explain(error, region)}{hint}")


class Instance:
    """An instance as EC2 described it. `launched` is the time of its last start."""

    def __init__(self, raw: dict[str, Any], region: str) -> None:
        self.region = region
        self.id, self.type = str(raw["InstanceId"]), str(raw["InstanceType"])
        self.zone = str(raw.get("Placement", {}).get("AvailabilityZone", region))
        self.state = str(raw["State"]["Name"])
        self.reason = str(raw.get("StateReason", {}).get("Message", ""))
        self.address = str(raw.get("PublicIpAddress") or raw.get("PrivateIpAddress") or "")
        self.launched: datetime.datetime = raw["LaunchTime"]


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
            raise explained(error, region) or error from None
        self.region = str(self._client.meta.region_name)

    def by_id(self, instance: str) -> Instance:
        """Return the instance with this id; it may be terminated."""
        (described,) = self._describe(InstanceIds=[instance])
        return described

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
        repeat = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda e: _code(e) in (*CAPACITY, WRONG_STATE)),
            stop=tenacity.stop_after_attempt(self._settings.attempts),
            wait=tenacity.wait_exponential(self._settings.poll_seconds, max=LONGEST_WAIT_SECONDS),
            before_sleep=lambda state: self._say(
                f"{state.outcome and state.outcome.exception()}; trying again"
            ),
            reraise=True,
        )
        try:
            return bool(repeat(self._start_once, instance))
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
        tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: _code(error) == WRONG_STATE),
            stop=tenacity.stop_after_delay(self._settings.stop_seconds),
            wait=tenacity.wait_fixed(self._settings.poll_seconds),
            reraise=True,
        )(self._call, partial(self._client.stop_instances, InstanceIds=[instance]))

    def wait_stopped(self, instance: str) -> None:
        self._wait("instance_stopped", instance, self._settings.stop_seconds, "stop")

    def checks(self, instance: str) -> str:
        """Return the states of the two status checks that are not `ok`, or `ok`."""
        ask = partial(self._client.describe_instance_status, IncludeAllInstances=True)
        for status in self._call(partial(ask, InstanceIds=[instance]))["InstanceStatuses"]:
            states = {status["SystemStatus"]["Status"], status["InstanceStatus"]["Status"]}
            return ", ".join(sorted(states - {"ok"})) or "ok"
        return "unknown"

    def _start_once(self, instance: Instance) -> bool:
        if self.by_id(instance.id).state == "stopping":
            self._say(f"waiting until {instance.id} has stopped")
            self.wait_stopped(instance.id)
        calls = 0

        def request() -> Any:
            nonlocal calls
            calls += 1
            return self._client.start_instances(InstanceIds=[instance.id])

        (change,) = self._call(request)["StartingInstances"]
        # If a response was lost, EC2 reports `pending` to the next call, which may be due to this
        # one. Stopping what another run started is better than leaving it running for ever.
        return calls > 1 or change["PreviousState"]["Name"] == "stopped"

    def _describe(self, **chosen: Any) -> list[Instance]:
        pages = self._client.get_paginator("describe_instances")
        responses = self._call(lambda: list(pages.paginate(**chosen)))
        return [
            Instance(raw, self.region)
            for response in responses
            for reservation in response["Reservations"]
            for raw in reservation["Instances"]
        ]

    def _wait(self, waiter: str, instance: str, seconds: float, what: str) -> None:
        """Use one of boto3's waiters, with our own polling interval and time limit."""
        poll = self._settings.poll_seconds
        config = {"Delay": poll, "MaxAttempts": max(1, math.ceil(seconds / poll))}
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
        repeat = tenacity.Retrying(
            retry=tenacity.retry_if_exception(passes),
            stop=tenacity.stop_after_attempt(self._settings.attempts),
            wait=tenacity.wait_exponential(first, max=LONGEST_WAIT_SECONDS),
            reraise=True,
        )
        try:
            return repeat(call)
        except Exception as error:
            if (mapped := explained(error, self.region, self._settings.attempts)) is None:
                raise
            raise mapped from None


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, TrainiumError) else ""


MINIMUM_SECONDS = 60.0
"""EC2 bills Linux per second, with this minimum after each start (StartInstances)."""


class Price(data.PriceRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: US dollars per hour for one instance type in some regions."""

    instance_type: str
    regions: Annotated[tuple[str, ...], Meta(min_length=1)]
    usd_per_hour: Annotated[float, Meta(gt=0)]

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
    for prices in data.read(file, data.TRAINIUM_PRICES, Prices):
        rows = [r for r in prices.price if r.instance_type == instance_type and region in r.regions]
        if rows:
            return max(rows, key=lambda row: row.date)
    return None


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
    with errors.OsErrorsAs(TrainiumError, f"{file} cannot be written"):
        replace(file, msgspec.json.encode(session) + b"\n")


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


CONNECT_SECONDS = 10.0


class Operation:
    """The verbs, for the state file of one run. `say` prints lines of progress."""

    def __init__(self, settings: Settings, state: Path, say: Say) -> None:
        self._settings = settings.trainium
        self._state = state
        self._say = say

    def up(self) -> InstanceReport:
        """Start the instance unless it runs, wait for its agent, and record who started it.

        If this fails or is interrupted after starting the instance, the instance is stopped again.
        """
        with self._locked():
            ec2 = Ec2(self._settings.region, self._settings, self._say)
            current = self._find(ec2)
            known = read(self._state)
            ours = known is not None and known.started
            if known is not None and ours and known.instance != current.id:
                raise UsageError(
                    f"this run has started {known.instance} and not stopped it: run compilewatch "
                    "trainium down first, or use another --state"
                )
            new = InstanceSession(instance=current.id, region=current.region, started=False)
            if current.state not in ("running", "pending"):
                return self._started(ec2, current, msgspec.structs.replace(new, started=True))
            if known is None or not ours or known.launched not in (None, current.launched):
                known = new  # what is known is about an earlier start
            write(self._state, known)
            self._say(f"{current.id} is {current.state} already")
            return self._ready(ec2, current, known, "joined")

    def down(self, *, force: bool = False, wait: bool = True) -> InstanceReport:
        """Stop what this run started, or with `force` the instance regardless of who started it."""
        with self._locked():
            known = read(self._state)
            if known is None and not force:
                return InstanceReport(action="nothing")
            if known is not None and not known.started and not force:
                self._state.unlink(missing_ok=True)
                return InstanceReport(action="left", instance=known.instance, region=known.region)
            ec2, current = self._to_stop(None if force else known)
            if known is not None and known.instance != current.id:
                known = None
            action = "stopped"
            if current.state in ("stopped", *GONE):
                action = "was stopped"
            elif known and known.launched not in (None, current.launched) and not force:
                action = "left"
                self._say(f"{current.id} was stopped and started by another user in the meantime")
            else:
                self._say(f"stopping {current.id}")
                ec2.stop(current.id)
            if known is not None:
                self._state.unlink(missing_ok=True)
            report = self._report(action, current, None if action == "left" else known)
            if action != "stopped":
                return report
            if wait:
                ec2.wait_stopped(current.id)
            return msgspec.structs.replace(report, state="stopped" if wait else "stopping")

    def started_here(self) -> bool:
        """Whether this run has started an instance and not stopped it."""
        known = read(self._state)
        return known is not None and known.started

    def status(self) -> InstanceReport:
        """Report the current state. Starts and stops nothing."""
        known = read(self._state)
        ec2 = Ec2(self._settings.region, self._settings, self._say)
        current = self._find(ec2)
        if known is not None and known.instance != current.id:
            known = None
        report = self._report("nothing", current, known)
        if current.state != "running":
            return report
        if not report.started_by_run:
            ran = _seconds_since(current.launched)
            usd = report.price.cost(ran) if report.price else None
            report = msgspec.structs.replace(report, seconds=ran, usd=usd)
        problem = self._problem(report) if report.host else "no address: set trainium.host"
        return msgspec.structs.replace(report, checks=ec2.checks(current.id), problem=problem)

    def _started(self, ec2: Ec2, current: Instance, known: InstanceSession) -> InstanceReport:
        # Written first, so that `down` finds the instance of a killed `up`.
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
        if not (self._settings.host or current.address):
            raise TrainiumError(f"{current.id} has no address: set trainium.host")
        report = self._report(action, current, known)
        where, seconds = f"{report.host}:{report.port}", self._settings.ready_seconds
        self._say(f"waiting for the agent on {where}")
        until = time.monotonic() + seconds
        while problem := self._problem(report):
            if time.monotonic() > until:
                raise TrainiumUnavailableError(
                    f"{report.instance} runs, but its agent did not respond on {where} within "
                    f"{seconds:g} s: {problem}; check that its security group admits this "
                    "machine, and check trainium.host"
                )
            time.sleep(self._settings.poll_seconds)
        report = self._report(action, current, known)
        return msgspec.structs.replace(report, checks="ok", problem="")

    def _problem(self, report: InstanceReport) -> str:
        """Why the SSH server of the agent is not ready; empty if it is."""
        # An SSH server sends first (RFC 4253, 4.2), so an open port alone is not sufficient.
        try:
            address = (report.host, report.port)
            with socket.create_connection(address, CONNECT_SECONDS) as connection:
                banner = connection.recv(4)
        except OSError as error:
            return (error.strerror or str(error)).lower()
        return "" if banner == b"SSH-" else "not an SSH server"

    def _stop_again(self, ec2: Ec2, instance: str) -> None:
        with _undisturbed():
            self._say(f"stopping {instance} again, because this run started it")
            try:
                ec2.stop(instance)
            except TrainiumError as error:
                self._say(f"{instance} MAY STILL RUN: {error}; run: compilewatch trainium down")
                return
            self._state.unlink(missing_ok=True)

    def _to_stop(self, known: InstanceSession | None) -> tuple[Ec2, Instance]:
        """Return the instance of this run; without one, that of the settings."""
        ec2 = Ec2(known.region if known else self._settings.region, self._settings, self._say)
        try:
            return ec2, ec2.by_id(known.instance) if known else self._find(ec2)
        except TrainiumError as error:
            if known and error.code == "InvalidInstanceID.NotFound":
                self._state.unlink(missing_ok=True)
            raise

    def _find(self, ec2: Ec2) -> Instance:
        instance_id = self._settings.instance
        current = ec2.by_id(instance_id) if instance_id else ec2.by_tag(self._settings.tag)
        if current.state in GONE:
            raise TrainiumError(f"{current.id} is terminated: create another and name it")
        return current

    def _report(
        self, action: str, current: Instance, known: InstanceSession | None
    ) -> InstanceReport:
        price = price_of(Path(self._settings.prices_file), current.type, current.region)
        ours = known is not None and known.started
        seconds = _seconds_since(known.since) if known else None
        return InstanceReport(
            action=action,
            instance=current.id,
            type=current.type,
            region=current.region,
            state=current.state,
            host=self._settings.host or current.address,
            port=self._settings.ssh_port,
            started_by_run=ours,
            price=price,
            seconds=seconds,
            usd=price.cost(seconds) if price and ours and seconds is not None else None,
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the state file, so that `up` and `down` of one run do not overlap."""
        # An `up` may take three times ready_seconds: start, checks, agent.
        seconds = 3 * self._settings.ready_seconds + self._settings.stop_seconds
        waiting = partial(self._say, "waiting for another compilewatch trainium to end")
        with errors.OsErrorsAs(TrainiumError, f"{self._state.parent} cannot be written"):
            self._state.parent.mkdir(parents=True, exist_ok=True)
            lock_file = self._state.with_name(f"{self._state.name}.lock").open("w")
        with lock_file:
            if not lock(lock_file.fileno(), seconds=seconds, on_wait=waiting):
                raise TrainiumUnavailableError(
                    f"another compilewatch trainium has held {self._state} for {seconds:g} s: "
                    "wait for it, or end it"
                )
            yield


def _seconds_since(moment: datetime.datetime) -> float:
    return (datetime.datetime.now(datetime.UTC) - moment).total_seconds()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM: Ctrl-C often comes twice, and the end of a build adds SIGTERM."""
    main = threading.current_thread() is threading.main_thread()
    with contextlib.ExitStack() as before:
        for number in (signal.SIGINT, signal.SIGTERM) if main else ():
            before.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))
        yield


WAIT_SECONDS = 3600.0
POLL_SECONDS = 15.0


@contextlib.contextmanager
def on_demand(
    make: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[Callable[[], None]]:
    """Yield a function that starts an instance, which is stopped when the context ends.

    `make` returns the context in which the instance runs, see `running`. The function can be called
    by several threads. It raises TrainiumError or ExecutorError: if the instance cannot be started,
    each of them gets the same error, and it is not tried again.
    """
    turn = threading.Lock()
    with contextlib.ExitStack() as started:

        @functools.cache
        def problem() -> errors.CompilewatchError | None:
            try:
                started.enter_context(make())
            except errors.CompilewatchError as error:
                return error
            return None

        def start() -> None:
            with turn:
                if (error := problem()) is not None:
                    raise error

        yield start


def state_file(settings: Settings) -> Path:
    """The file that says who has started the instance, unless a command names another one."""
    return (settings.cache_folder or cache_folder()) / "trainium.json"


@contextlib.contextmanager
def running(
    operation: Operation,
    client: ExecutorClient,
    say: Say,
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
        until = time.monotonic() + wait_seconds
        while (reason := hold(client) if ours else None) and time.monotonic() <= until:
            say(f"the instance is stopped later, because {reason}")
            time.sleep(poll_seconds)
        if reason:
            say(f"the instance keeps running, because {reason}; it stops itself when it is idle")
        else:
            stopped = False
            try:
                stopped = operation.down().action != "left"
            finally:
                if ours and not stopped:  # its service takes jobs again
                    with contextlib.suppress(errors.ExecutorError):
                        client.undrain()


def hold(client: ExecutorClient) -> str | None:
    """Let the service take no more jobs. Returns why the instance must not be stopped, else None.

    A service that does not respond is not idle.
    """
    try:
        client.drain()
    except errors.ExecutorError as error:
        unavailable = isinstance(error, errors.ExecutorUnavailableError)
        if not unavailable and error.status != HTTPStatus.CONFLICT:
            raise
        return str(error)
    return None
