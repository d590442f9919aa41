"""`compilewatch publish` as a person types it, to real services and without them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import services
from tests.sharing import free_port
from tests.team import Compilewatch

QUICK = {"COMPILEWATCH_PUBLISH_RETRY_SECONDS": "0"}


def test_a_shard_or_a_run_that_lies_elsewhere_is_not_pushed(
    compilewatch: Compilewatch, swept: dict[str, Any], tmp_path: Path
) -> None:
    address = {"COMPILEWATCH_PUSHGATEWAY_URL": f"http://127.0.0.1:{free_port()}"}
    done = compilewatch("publish", swept["folder"], "--output", str(tmp_path), **address)
    assert done.returncode == 2
    assert f"is not in {tmp_path}: name its folder of runs with --output" in done.stderr
    assert list(tmp_path.iterdir()) == []
    done = compilewatch("sweep", "--source", "manifest", "--shard", "1/1", "--json")
    done = compilewatch("publish", json.loads(done.stdout)["run"]["id"], **address)
    assert done.returncode == 2
    assert "is shard 1/1: its metrics would replace those of the complete run" in done.stderr


@pytest.mark.services
def test_what_waited_is_sent_when_the_gateway_is_back(
    compilewatch: Compilewatch, swept: dict[str, Any], tmp_path: Path
) -> None:
    port = free_port()
    address = {"COMPILEWATCH_PUSHGATEWAY_URL": f"http://127.0.0.1:{port}", **QUICK}
    swept_again = compilewatch("sweep", "--source", "manifest", **address)
    assert swept_again.returncode == 0, swept_again.stderr
    assert "pushgateway was not published to: no Pushgateway responds at" in swept_again.stdout
    done = compilewatch("publish", **address)
    assert done.returncode == 3
    assert "kept in the spool; the next publish sends it" in done.stderr
    with services.pushgateway(tmp_path, port=port) as gateway:
        done = compilewatch("publish", swept["run"]["id"], **address)
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first.startswith("pushgateway: ")
        assert second.startswith("run ")
        assert "(spooled): pushgateway: " in second
        page = gateway.get("/metrics")
        assert b'compilewatch_spooled_publications{instance="",job=' in page
        assert b'compile_breaks_total{commit="",family="team",instance="",' in page
    assert compilewatch("publish", "--json", **address).returncode == 3
