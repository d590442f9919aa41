"""up, down and status: an instance that was started for a run is stopped with it."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from compilewatch import data
from compilewatch.config import Settings
from compilewatch.errors import TrainiumError, TrainiumUnavailableError, UsageError
from compilewatch.extras.executor.settings import TrainiumSettings
from compilewatch.extras.executor.trainium.ec2 import GONE, Ec2, Instance, InstanceLimits, Say
from compilewatch.files import lock
from compilewatch.records import Record

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
    since: datetime.datetime
    launched: datetime.datetime | None = None
    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1

    def seconds(self) -> float:
        """Return the age of the session in seconds."""
        return (datetime.datetime.now(datetime.UTC) - self.since).total_seconds()


def begin(instance: str, region: str, *, started: bool) -> InstanceSession:
    """Return a new session that starts now."""
    now = datetime.datetime.now(datetime.UTC)
    return InstanceSession(instance=instance, region=region, started=started, since=now)


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


def end(file: Path) -> None:
    """Delete the session's file."""
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
        own = settings.of(TrainiumSettings)
        self._settings = own
        self._state = state
        self._say = say
        self._limits = InstanceLimits(
            attempts=own.attempts,
            poll_seconds=own.poll_seconds,
            ready_seconds=own.ready_seconds,
            stop_seconds=own.stop_seconds,
        )

    def up(self) -> InstanceReport:
        """Start the instance unless it runs, wait for its agent, and record who started it.

        If this fails or is interrupted after starting the instance, the instance is stopped again.
        """
        with self._locked():
            ec2 = self._ec2(self._settings.region)
            current = self._find(ec2)
            known = self._other_than(current, read(self._state))
            if current.state in ("running", "pending"):
                known = known or begin(current.id, current.region, started=False)
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
                end(self._state)
                return InstanceReport(action="left", instance=known.instance, region=known.region)
            ec2, current = self._meant(known, force=force)
            if known is not None and known.instance != current.id:
                known = None
            if current.state in ("stopped", *GONE):
                self._end(known)
                return self._report("was stopped", current, known)
            if known and known.launched not in (None, current.launched) and not force:
                self._end(known)
                self._say(f"{current.id} was stopped and started by another user in the meantime")
                return self._report("left", current, None)
            self._say(f"stopping {current.id}")
            ec2.stop(current.id)
            self._end(known)
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
        known = begin(current.id, current.region, started=True)
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
                end(self._state)
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
        agent.wait(self._limits.ready_seconds, self._limits.poll_seconds)
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
            end(self._state)

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
                self._end(known)
            raise

    def _end(self, known: InstanceSession | None) -> None:
        if known is not None:
            end(self._state)

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
        return Ec2(region, self._settings.profile, self._limits, self._say)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        # An `up` may take three times ready_seconds: start, checks, agent.
        seconds = 3 * self._limits.ready_seconds + self._limits.stop_seconds
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
