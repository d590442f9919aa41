"""What a lost task means, on Ray's own exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.errors import LauncherError
from compilewatch.extras.cluster.driver import load_ray, loss_of
from compilewatch.extras.cluster.launcher import MOST_LOSSES, Flight
from compilewatch.records import AttemptCode, Request, Result, Status
from tests import factories
from tests.fake_launcher import FakeLauncher
from tests.sweeping import ASKED, run_sweep


def test_losses_are_told_apart_and_bounded() -> None:
    kinds = load_ray().exceptions
    flight = Flight(request=factories.request("A"))
    for error in (
        kinds.NodeDiedError("x Node IP: 10.0.0.3, node ID: 0123456789ab. y"),
        kinds.ObjectLostError("0" * 56, None, ""),
        kinds.OutOfMemoryError("memory"),
    ):
        assert flight.may_run_again
        flight = flight.lost(*loss_of(error, kinds))
    assert len(flight.attempts) == MOST_LOSSES
    assert not flight.may_run_again
    assert [f"{a.code}: {a.reason}" for a in flight.attempts] == [
        "node_lost: its Ray node 10.0.0.3 (01234567) was lost",
        "node_lost: its Ray node was lost",
        "node_out_of_memory: Ray ended its worker, as the node ran out of memory",
    ]
    result = flight.result("digest")
    assert (result.status, len(result.attempts)) == (Status.OOM, 2)
    assert result.error is not None
    assert result.error.code == "node_out_of_memory"
    with pytest.raises(LauncherError, match="the Ray cluster cannot run it"):
        loss_of(kinds.RuntimeEnvSetupError("no"), kinds)


def test_what_a_cluster_lost_is_said_once_for_each_kind_of_loss(tmp_path: Path) -> None:
    def troubled(request: Request) -> Result:
        flight = Flight(request=request).lost(AttemptCode.CONNECTION_LOST, "the connection")
        if request.model.name == "A":
            flight = flight.lost(AttemptCode.NODE_LOST, "a node")
        return factories.result(request=request, attempts=flight.attempts)

    view = run_sweep(tmp_path, FakeLauncher(answers=troubled))
    assert view.notes == (
        "1 request was evaluated again because a node of the cluster was lost",
        f"{len(ASKED)} requests were evaluated again because "
        "the connection to the cluster was lost",
    )
    assert run_sweep(tmp_path).notes == ()
