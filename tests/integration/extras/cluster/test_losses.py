"""What a lost task means, on Ray's own exceptions."""

from __future__ import annotations

from compilewatch.extras.cluster.driver import load_ray
from compilewatch.extras.cluster.launcher import MOST_LOSSES, Flight, lost_result
from compilewatch.records import Status
from tests import factories


def test_losses_are_told_apart_and_bounded() -> None:
    kinds = load_ray().exceptions
    flight: Flight | None = Flight(request=factories.request("A"))
    for error in (
        kinds.NodeDiedError("x Node IP: 10.0.0.3, node ID: 0123456789ab. y"),
        kinds.ObjectLostError("0" * 56, None, ""),
        kinds.OutOfMemoryError("memory"),
    ):
        assert flight is not None
        assert flight.may_run_again
        flight = flight.lost(error, kinds)
    assert flight is not None
    assert len(flight.attempts) == MOST_LOSSES
    assert not flight.may_run_again
    assert [f"{a.code}: {a.reason}" for a in flight.attempts] == [
        "node_lost: its Ray node 10.0.0.3 (01234567) was lost",
        "node_lost: its Ray node was lost",
        "node_out_of_memory: Ray ended its worker, as the node ran out of memory",
    ]
    result = lost_result(flight, "digest")
    assert (result.status, len(result.attempts)) == (Status.OOM, 2)
    assert result.error is not None
    assert result.error.code == "node_out_of_memory"
    assert flight.lost(kinds.RuntimeEnvSetupError("no"), kinds) is None
