"""up, down and status against moto's EC2, with what can go wrong at each step."""

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from botocore.exceptions import EndpointConnectionError
from moto.ec2.models.instances import StateReason

from compilewatch import data
from compilewatch.errors import TrainiumError, TrainiumUnavailableError, UsageError
from compilewatch.extras.executor import trainium
from compilewatch.extras.executor.trainium import InstanceReport, Operation
from tests.integration.extras.executor.trainium.conftest import ACCESS, Refuse, World
from tests.sharing import free_port

QUICK = {"trainium_ready_seconds": 0.2}
"""For what is never ready."""


def test_the_newest_price_counts_and_an_unknown_one_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.operation().up()
    known = trainium.read(world.file)
    assert known is not None
    an_hour_ago = known.since - datetime.timedelta(hours=1)
    trainium.write(world.file, msgspec.structs.replace(known, since=an_hour_ago))
    report = world.operation().status()
    assert report.price is not None
    assert report.price.usd_per_hour == 1.5
    assert report.usd == pytest.approx(1.5, abs=0.05)
    assert report.price.cost(1) == pytest.approx(1.5 / 60), "a minute is the least"
    (reviewed := world.folder / "reviewed.toml").write_text("schema_version = 1\n")
    monkeypatch.setattr(data, "TRAINIUM_PRICES", reviewed)
    report = world.operation(trainium_prices_file=str(world.folder / "no file.toml")).status()
    assert (report.price, report.usd) == (None, None)


def test_what_ran_before_is_left_running(world: World) -> None:
    world.put("running")
    up = world.operation().up()
    assert (up.action, up.started_by_run, up.usd) == ("joined", False, None)
    world.sshd.banner = b"HTTP/1.0 400"
    with pytest.raises(TrainiumUnavailableError, match="not an SSH server"):
        world.operation(None, **QUICK).up()
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


def test_of_two_at_once_one_has_started_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both saw it stopped; EC2's answer to StartInstances tells them apart."""
    barrier = threading.Barrier(2)
    real = world.backend.start_instances

    def together(*arguments: Any) -> Any:
        barrier.wait(timeout=30)
        return real(*arguments)

    monkeypatch.setattr(world.backend, "start_instances", together)
    with ThreadPoolExecutor(2) as pool:
        operations = (world.operation(world.folder / f"{name}.json") for name in "ab")
        reports = list(pool.map(Operation.up, operations))
    assert sorted(report.action for report in reports) == ["joined", "started"]


def test_one_that_is_stopping_is_awaited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("stopping")
    real, seen = world.backend.get_reservations_by_instance_ids, []

    def by_id(*arguments: Any, **keywords: Any) -> Any:
        seen.append(world.state())
        if len(seen) == 4:
            world.put("stopped")
        return real(*arguments, **keywords)

    monkeypatch.setattr(world.backend, "get_reservations_by_instance_ids", by_id)
    assert world.operation(trainium_instance=world.instance).up().action == "started"
    assert f"waiting until {world.instance} has stopped" in world.said


@pytest.mark.parametrize(
    ("action", "code", "times"),
    [
        ("start_instances", "IncorrectInstanceState", 1),
        ("start_instances", "InsufficientInstanceCapacity", 2),
        ("start_instances", "RequestLimitExceeded", 2),
        ("describe_instance_status", "RequestLimitExceeded", 2),
        ("stop_instances", "IncorrectInstanceState", 2),
    ],
)
def test_what_passes_is_ridden_out(
    world: World, refuse: Refuse, action: str, code: str, times: int
) -> None:
    calls = refuse(action, code, times=times)
    assert world.operation().up().action == "started"
    assert world.operation().down().action == "stopped"
    assert len(calls) > times
    again = any(code in line and "trying again" in line for line in world.said)
    assert again is (action == "start_instances" and code != "RequestLimitExceeded")


@pytest.mark.parametrize(
    ("code", "count", "message"),
    [
        ("UnauthorizedOperation", 1, r"may not ec2:StartInstances: .*docs/trainium\.md"),
        ("VcpuLimitExceeded", 1, "quota forbids it .*Service Quotas"),
        ("UnsupportedOperation", 1, "EC2 rejects StartInstances: UnsupportedOperation: as the"),
        ("AuthFailure", 1, r"AWS rejects these credentials in us-east-1 \(AuthFailure\)"),
        ("InsufficientInstanceCapacity", 3, r"no capacity for trn1.* in us-east-1\w now \(tried 3"),
        ("RequestLimitExceeded", 3, r"failed 3 times to respond to StartInstances \(RequestLimit"),
    ],
)
def test_what_does_not_pass_is_said_in_one_line(
    world: World, refuse: Refuse, code: str, count: int, message: str
) -> None:
    calls = refuse("start_instances", code)
    with pytest.raises(TrainiumError, match=message) as caught:
        world.operation().up()
    assert caught.value.exit_status == (2 if count == 1 else 1)
    assert "\n" not in str(caught.value)
    assert len(calls) == count
    assert world.state() == "stopped"
    # After a throttled call it is not known whether it had an effect: then it is stopped again.
    assert not world.file.exists(), "nothing was started, so nothing is left to stop"


def test_a_start_whose_response_was_lost_is_ours(world: World, refuse: Refuse) -> None:
    refuse("start_instances", "InternalError", times=1, after=True)
    assert world.operation().up().started_by_run
    assert world.operation().down().action == "stopped"
    refuse("start_instances", "InternalError", after=True)
    with pytest.raises(TrainiumUnavailableError):
        world.operation().up()
    assert world.state() == "stopped"


# --- what was started and does not get ready is stopped again ---

COMMAND = 'echo "no cores in $TRAINIUM_HOST $TRAINIUM_PORT $TRAINIUM_INSTANCE" >&2; exit 3'


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"host": "127.0.0.2", "ssh_port": 9}, "connection refused; check that its"),
        ({"ready_command": COMMAND}, r"ended with 3: no cores in 127.0.0.1 \d+ i-\w+"),
    ],
)
def test_one_that_does_not_get_ready_is_stopped_again(
    world: World, flags: dict[str, Any], message: str
) -> None:
    settings = {f"trainium_{name}": value for name, value in flags.items()}
    with pytest.raises(TrainiumUnavailableError, match=message):
        world.operation(None, **QUICK, **settings).up()
    assert world.state() == "stopped"
    assert not world.file.exists()


def test_one_that_falls_back_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As EC2 does without the right to use the key of its disk."""
    real = world.backend.start_instances

    def start(ids: list[str]) -> Any:
        answer = real(ids)
        world.put("stopped")
        world.backend.get_instance(world.instance).state_reason = StateReason(
            "Client.InvalidKMSKey.InvalidState: the key is not to be used", "Client.InvalidKMSKey"
        )
        return answer

    monkeypatch.setattr(world.backend, "start_instances", start)
    reason = r"did not run within 0\.2 s: it is stopped \(Client\."
    with pytest.raises(TrainiumUnavailableError, match=reason):
        world.operation(None, **QUICK).up()
    assert not world.file.exists()


def test_a_stop_that_fails_is_shouted_and_left_to_down(world: World, refuse: Refuse) -> None:
    world.sshd.close()
    refuse("stop_instances", "UnauthorizedOperation", times=1)
    with pytest.raises(TrainiumUnavailableError):
        world.operation(None, **QUICK).up()
    assert any("MAY STILL RUN" in line and "ec2:StopInstances" in line for line in world.said)
    assert world.state() == "running"
    assert world.operation().down().action == "stopped"


# --- down, after others did something to the instance ---


def test_somebody_elses_later_start_is_left(world: World) -> None:
    world.operation().up()
    instance = world.backend.get_instance(world.instance)
    instance.launch_time = instance.launch_time + datetime.timedelta(hours=1)
    assert world.operation().down().action == "left"
    assert world.state() == "running"


def test_one_that_stopped_itself_is_no_trouble(world: World) -> None:
    world.operation().up()
    world.put("stopped")
    down = world.operation().down()
    assert (down.action, down.state) == ("was stopped", "stopped")
    assert down.usd is not None
    assert world.operation().up().action == "started", "and it can be started anew"


def test_one_that_was_terminated_meanwhile_is_said_once(world: World) -> None:
    world.operation().up()
    world.backend.reservations.clear()
    with pytest.raises(TrainiumError, match=r"us-east-1 has no such instance .*trainium.region"):
        world.operation().down()
    assert world.operation().down().action == "nothing"


def test_down_need_not_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.operation().up()
    real = world.backend.stop_instances

    def slowly(ids: list[str]) -> Any:
        answer = real(ids)
        world.put("stopping")
        return answer

    monkeypatch.setattr(world.backend, "stop_instances", slowly)
    assert world.operation().down(wait=False).state == "stopping"
    with pytest.raises(TrainiumUnavailableError, match=r"did not stop within 0\.2 s: it is stopp"):
        world.operation(trainium_stop_seconds=0.2).down(force=True)


def test_another_instance_is_not_started_over_the_first(world: World) -> None:
    world.operation().up()
    other = world.add("other")
    with pytest.raises(UsageError, match=f"has started {world.instance} and not stopped it"):
        world.operation(trainium_instance=other).up()
    report = world.operation(trainium_instance=other).down(force=True)
    assert (report.instance, report.started_by_run) == (other, False)
    assert world.state() == "running"
    assert world.file.exists(), "the first is still this run's"


# --- state files and settings ---


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 2}', "\xff"])
def test_a_foreign_state_file_is_not_overwritten(world: World, text: str) -> None:
    world.file.write_bytes(text.encode("latin-1"))
    with pytest.raises(TrainiumError, match=r"is not a state file of compilewatch trainium"):
        world.operation().up()
    assert world.file.read_bytes() == text.encode("latin-1")
    assert world.state() == "stopped"


def test_a_state_file_that_cannot_be_written_starts_nothing(world: World, refuse: Refuse) -> None:
    calls = refuse("start_instances", "NotAsked")
    world.file.with_name("trainium.json.new").mkdir()
    with pytest.raises(TrainiumError, match="cannot be written: "):
        world.operation().up()
    assert calls == []


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


def test_a_tag_means_one_instance(world: World) -> None:
    other = world.add()
    with pytest.raises(UsageError, match=r"2 instances .*name one with --instance") as caught:
        world.operation().up()
    assert other in str(caught.value)
    assert world.operation(trainium_instance=world.instance).up().instance == world.instance
    world.operation().down()
    world.client.terminate_instances(InstanceIds=[other, world.instance])
    with pytest.raises(TrainiumError, match="had it and is terminated"):
        world.operation().up()
    with pytest.raises(TrainiumError, match="is terminated: create another"):
        world.operation(trainium_instance=world.instance).up()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tag": "team=none"}, r"no instance in us-east-1 has the tag team=none: tag"),
        ({"tag": "team"}, "'team' is not of the form NAME=VALUE"),
        ({"instance": "i-0123456789abcdef0"}, "us-east-1 has no such instance"),
        ({"region": ""}, r"set AWS_REGION; see .*trainium.region"),
        ({"profile": "nobody"}, r"nobody.* could not be found: check AWS_PROFILE"),
        ({"region": "us east 1"}, r"no AWS region 'us east 1'.*did you mean 'us-east-1'"),
        ({"region": "eu-west-1"}, "no instance in eu-west-1 has the tag compilewatch="),
    ],
)
def test_a_setting_that_does_not_fit_is_said(
    world: World, flags: dict[str, str], message: str
) -> None:
    settings = {f"trainium_{name}": value for name, value in flags.items()}
    with pytest.raises((TrainiumError, UsageError), match=message) as caught:
        world.operation(None, **settings).up()
    assert caught.value.exit_status == 2


def test_without_credentials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ACCESS:
        monkeypatch.delenv(name)
    assert world.operation().down() == InstanceReport(action="nothing"), "it needs none"
    with pytest.raises(TrainiumError, match="no AWS credentials found: set AWS_PROFILE"):
        world.operation().up()
    assert not world.file.exists()


def test_a_network_that_is_down_or_a_misspelt_region(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a region that does not exist has no address: said at once, without retries."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TrainiumUnavailableError, match="EC2 in us-east-1 cannot be reached"):
        world.operation().up()
    mistake = r"no AWS region 'us-esat-1'.*did you mean .*us-east-1.*\?"
    with pytest.raises(TrainiumError, match=mistake) as caught:
        world.operation(trainium_region="us-esat-1").up()
    assert caught.value.exit_status == 2
    error = EndpointConnectionError(endpoint_url="https://ec2.us-esat-1.amazonaws.com/")
    assert trainium.passes(error, known_region=True)
    assert not trainium.passes(error, known_region=False)
