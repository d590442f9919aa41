"""What botocore says before EC2 says anything: credentials, regions, the network."""

from __future__ import annotations

import pytest
from botocore.exceptions import EndpointConnectionError

from compilewatch.errors import TrainiumError, TrainiumUnavailableError
from compilewatch.extras.executor import trainium
from tests.integration.extras.executor.trainium.conftest import World
from tests.sharing import free_port


def test_without_credentials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(TrainiumError, match="no AWS credentials found: set AWS_PROFILE"):
        world.operation().up()
    assert not world.file.exists()


def test_with_half_of_the_credentials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(TrainiumError, match="no AWS credentials found"):
        world.operation().up()


def test_without_a_region(world: World) -> None:
    with pytest.raises(TrainiumError, match=r"set AWS_REGION; see .*trainium.region"):
        world.operation(trainium_region="").up()


def test_a_profile_that_is_not_there(world: World) -> None:
    with pytest.raises(TrainiumError, match=r"nobody.* could not be found: check AWS_PROFILE"):
        world.operation(trainium_profile="nobody").up()


def test_a_region_that_is_no_word_of_aws(world: World) -> None:
    with pytest.raises(TrainiumError, match=r"no AWS region 'us east 1'.*did you mean 'us-east-1'"):
        world.operation(trainium_region="us east 1").up()


def test_a_misspelt_region_has_no_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name resolves to nothing; that is told at once, not after retries."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(
        TrainiumError, match=r"no AWS region 'us-esat-1'.*did you mean .*us-east-1.*\?"
    ) as caught:
        world.operation(trainium_region="us-esat-1").up()
    assert caught.value.exit_status == 2


def test_only_a_region_that_exists_is_worth_another_try() -> None:
    error = EndpointConnectionError(endpoint_url="https://ec2.us-esat-1.amazonaws.com/")
    assert trainium.passes(error, known_region=True)
    assert not trainium.passes(error, known_region=False)


def test_a_region_of_others_has_no_such_instance(world: World) -> None:
    with pytest.raises(TrainiumError, match="no instance in eu-west-1 has the tag compilewatch="):
        world.operation(trainium_region="eu-west-1").up()
    with pytest.raises(TrainiumError, match=r"eu-west-1 has no such instance .*trainium.region"):
        world.operation(trainium_region="eu-west-1", trainium_instance=world.instance).up()


def test_a_network_that_is_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TrainiumUnavailableError, match="EC2 in us-east-1 cannot be reached"):
        world.operation().up()
