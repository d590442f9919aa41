"""up, down and status against moto's EC2, with what can go wrong at each step."""

import datetime
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from moto.ec2.models.instances import StateReason

from compilewatch.errors import TrainiumError, TrainiumUnavailableError, UsageError
from compilewatch.extras.executor import trainium
from compilewatch.extras.executor.trainium import InstanceReport, Operation
from tests.integration.extras.executor.trainium.conftest import ACCESS, World
from tests.sharing import free_port


def test_the_newest_price_counts_and_a_minute_is_the_least(world: World) -> None:
    world.operation().up()
    known = trainium.read(world.file)
    assert known is not None
    an_hour_ago = known.since - datetime.timedelta(hours=1)
    trainium.write(world.file, msgspec.structs.replace(known, since=an_hour_ago))
    report = world.operation().status()
    assert report.price is not None
    assert report.price.usd_per_hour == 1.5
    assert report.usd == pytest.approx(1.5, abs=0.05)
    assert report.price.cost(1) == pytest.approx(1.5 / 60)


def test_what_ran_before_is_left_running(world: World) -> None:
    world.put("running")
    up = world.operation().up()
    assert (up.action, up.started_by_run, up.usd) == ("joined", False, None)
    world.sshd.banner = b"HTTP/1.0 400"
    with pytest.raises(TrainiumUnavailableError, match="not an SSH server"):
        world.operation(ready_seconds=0.2).up()
    assert world.operation().down().action == "left"
    assert world.state() == "running"
    assert world.operation().down().action == "nothing"
    assert world.operation().down(force=True).action == "stopped"
    assert world.state() == "stopped"


def test_up_again_is_the_same_session_and_another_run_joins(world: World) -> None:
    other = world.folder / "other.json"
    world.operation().up()
    first = trainium.read(world.file)
    assert world.operation().up().started_by_run
    assert trainium.read(world.file) == first
    assert world.operation(other).up().action == "joined"
    assert world.operation(other).down().action == "left"
    assert world.state() == "running"
    assert world.operation().down().action == "stopped"


def test_of_two_at_once_one_has_started_it(world: World) -> None:
    """Both saw it stopped; EC2's answer to StartInstances tells them apart."""
    barrier = threading.Barrier(2)
    world.replace("start_instances", lambda real, *ids: (barrier.wait(timeout=30), real(*ids))[1])
    with ThreadPoolExecutor(2) as pool:
        operations = (world.operation(world.folder / f"{name}.json") for name in "ab")
        reports = list(pool.map(Operation.up, operations))
    assert sorted(report.action for report in reports) == ["joined", "started"]


def test_one_that_is_stopping_is_awaited(world: World) -> None:
    world.put("stopping")
    seen = []

    def by_id(real: Any, *arguments: Any, **keywords: Any) -> Any:
        seen.append(world.state())
        if len(seen) == 4:
            world.put("stopped")
        return real(*arguments, **keywords)

    world.replace("get_reservations_by_instance_ids", by_id)
    assert world.operation(instance=world.instance).up().action == "started"
    assert f"waiting until {world.instance} has stopped" in world.said


@pytest.mark.parametrize(
    ("action", "code", "times"),
    [
        ("start_instances", "IncorrectInstanceState", 1),
        ("start_instances", "InsufficientInstanceCapacity", 2),
        ("start_instances", "RequestLimitExceeded", 2),
        ("start_instances", "InternalError", 1),  # its response was lost: it is ours
        ("describe_instance_status", "RequestLimitExceeded", 2),
        ("stop_instances", "IncorrectInstanceState", 2),
    ],
)
def test_what_passes_is_ridden_out(world: World, action: str, code: str, times: int) -> None:
    world.refuse(action, code, times=times, after=code == "InternalError")
    assert world.operation().up().action == "started"
    assert world.operation().down().action == "stopped"
    assert len(world.refused) > times


def refuse_start(code: str, **options: Any) -> Callable[[World], None]:
    return lambda world: world.refuse("start_instances", code, **options)


def fall_back(world: World) -> None:
    """As EC2 does without the right to use the key of its disk."""

    def start(real: Any, ids: list[str]) -> Any:
        response = real(ids)
        world.put("stopped")
        reason = StateReason("Client.InvalidKMSKey.InvalidState: not to be used", "Client")
        world.backend.get_instance(world.instance).state_reason = reason
        return response

    world.replace("start_instances", start)


def without_credentials(world: World) -> None:
    for name in ACCESS:
        world.patch.delenv(name)
    assert world.operation().down() == InstanceReport(action="nothing"), "it needs none"


def without_network(world: World) -> None:
    world.patch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{free_port()}")


def unwritable(world: World) -> None:
    temporary = f".trainium.json.{os.getpid()}.{threading.get_ident()}.tmp"
    world.file.with_name(temporary).mkdir()


NOTHING: Callable[[World], None] = lambda _: None  # noqa: E731


@pytest.mark.parametrize(
    ("status", "message", "happens", "settings"),
    [
        # What EC2 answers to the start: the first of it does not pass.
        (2, r"not ec2:StartInstances: .*docs/trainium\.md", "UnauthorizedOperation", {}),
        (2, "quota forbids it .*Service Quotas", "VcpuLimitExceeded", {}),
        (2, "rejects StartInstances: UnsupportedOperation: as", "UnsupportedOperation", {}),
        (2, r"rejects these credentials in us-east-1 \(AuthFailure\)", "AuthFailure", {}),
        (1, r"no capacity for trn1.* in us-east-1\w now", "InsufficientInstanceCapacity", {}),
        (1, r"failed 3 times to respond to StartInst.* \(Req", "RequestLimitExceeded", {}),
        # Whether it had an effect is not known: then it is stopped again.
        (1, "failed 3 times", refuse_start("InternalError", after=True), {}),
        # It is started and does not get ready.
        (1, r"did not run within 0\.2 s: it is stopped \(Client\.", fall_back, {}),
        (1, "refused; check that its", NOTHING, {"host": "127.0.0.2", "ssh_port": 9}),
        # It cannot be found, or asked for.
        (1, "EC2 in us-east-1 cannot be reached", without_network, {}),
        (2, "no AWS credentials found: set AWS_PROFILE", without_credentials, {}),
        (2, "cannot be written .*: Is a directory", unwritable, {}),
        (2, r"2 instances .*name one with --instance \(.*i-", World.add, {}),
        (2, "no instance in us-east-1 has the tag team=none: tag", NOTHING, {"tag": "team=none"}),
        (2, "'team' is not of the form NAME=VALUE", NOTHING, {"tag": "team"}),
        (2, "us-east-1 has no such instance", NOTHING, {"instance": "i-0123456789abcdef0"}),
        (2, r"set AWS_REGION; see .*trainium.region", NOTHING, {"region": ""}),
        (2, r"nobody.* not be found: check AWS_PROFILE", NOTHING, {"profile": "nobody"}),
        (2, r"'us east 1'.*did you mean 'us-east-1'", NOTHING, {"region": "us east 1"}),
        (2, r"'us-esat-1'.*did you mean .*us-east-1", without_network, {"region": "us-esat-1"}),
    ],
)
def test_an_up_that_fails_says_why_in_one_line_and_leaves_nothing_running(
    world: World,
    status: int,
    message: str,
    happens: Callable[[World], Any] | str,
    settings: dict[str, Any],
) -> None:
    (refuse_start(happens) if isinstance(happens, str) else happens)(world)
    with pytest.raises((TrainiumError, UsageError), match=message) as caught:
        world.operation(None, **{"ready_seconds": 0.2} | settings).up()
    assert caught.value.exit_status == status
    assert "\n" not in str(caught.value)
    assert len(world.refused) in (0, {1: 3, 2: 1}[status])
    assert world.state() == "stopped"
    assert not world.file.exists(), "nothing is left to stop"


def test_a_stop_that_fails_is_shouted_and_left_to_down(world: World) -> None:
    world.sshd.close()
    world.refuse("stop_instances", "UnauthorizedOperation", times=1)
    with pytest.raises(TrainiumUnavailableError):
        world.operation(ready_seconds=0.2).up()
    assert any("MAY STILL RUN" in line and "ec2:StopInstances" in line for line in world.said)
    assert world.state() == "running"
    assert world.operation().down().action == "stopped"


def test_down_after_others_did_something_to_the_instance(world: World) -> None:
    world.operation().up()
    world.put("stopped")  # by itself
    down = world.operation().down()
    assert (down.action, down.state) == ("was stopped", "stopped")
    assert down.usd is not None
    world.operation().up()
    instance = world.backend.get_instance(world.instance)
    instance.launch_time += datetime.timedelta(hours=1)  # another user started it again
    assert world.operation().down().action == "left"
    assert world.state() == "running"
    world.put("stopped")
    world.operation().up()
    world.client.terminate_instances(InstanceIds=[world.instance])
    for settings in ({}, {"instance": world.instance}):
        with pytest.raises(TrainiumError, match=r"is terminated\)?: (tag|create an)"):
            world.operation(world.folder / "other.json", **settings).up()
    world.backend.reservations.clear()
    with pytest.raises(TrainiumError, match=r"us-east-1 has no such instance .*trainium.region"):
        world.operation().down()
    assert world.operation().down().action == "nothing"


def test_down_need_not_wait(world: World) -> None:
    world.operation().up()

    def slowly(real: Any, ids: list[str]) -> Any:
        response = real(ids)
        world.put("stopping")
        return response

    world.replace("stop_instances", slowly)
    assert world.operation().down(wait=False).state == "stopping"
    with pytest.raises(TrainiumUnavailableError, match=r"did not stop within 0\.2 s: it is stopp"):
        world.operation(stop_seconds=0.2).down(force=True)


def test_another_instance_is_not_started_over_the_first(world: World) -> None:
    world.operation().up()
    other = world.add("other")
    with pytest.raises(UsageError, match=f"has started {world.instance} and not stopped it"):
        world.operation(instance=other).up()
    report = world.operation(instance=other).down(force=True)
    assert (report.instance, report.started_by_run) == (other, False)
    assert world.state() == "running"
    assert world.file.exists(), "the first is still this run's"


@pytest.mark.parametrize("text", [b"", b'{"schema_version": 2}', b"\xff"])
def test_a_foreign_state_file_is_not_overwritten(world: World, text: bytes) -> None:
    world.file.write_bytes(text)
    with pytest.raises(TrainiumError, match="is not a state file of compilewatch trainium"):
        world.operation().up()
    assert world.file.read_bytes() == text
    assert world.state() == "stopped"


def test_status_changes_nothing(world: World) -> None:
    stopped = world.operation().status()
    assert (stopped.state, stopped.problem, stopped.ready) == ("stopped", None, False)
    world.put("running")
    running = world.operation().status()
    assert running.ready
    assert running.usd is not None, "what it costs since its start, whoever started it"
    world.sshd.close()
    assert world.operation().status().problem == "connection refused"
    assert not world.file.exists()
