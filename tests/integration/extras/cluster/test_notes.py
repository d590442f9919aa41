"""What a run says of what a cluster lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from compilewatch.extras.cluster.launcher import Flight
from compilewatch.records import Request, Result
from tests import factories
from tests.fake_launcher import FakeLauncher
from tests.sweeping import ASKED, run_sweep


def test_what_a_cluster_lost_is_said_once_for_each_kind_of_loss(tmp_path: Path) -> None:
    def troubled(request: Request) -> Result:
        flight = Flight(request=request).cut_off()
        if request.model.name == "A":
            kinds = SimpleNamespace(
                OutOfMemoryError=MemoryError, NodeDiedError=OSError, ObjectLostError=KeyError
            )
            again = flight.lost(OSError(), kinds)
            assert again is not None
            flight = again
        return factories.result(request=request, attempts=flight.attempts)

    view = run_sweep(tmp_path, FakeLauncher(answers=troubled))
    assert view.notes == (
        "1 request was evaluated again because a node of the cluster was lost",
        f"{len(ASKED)} requests were evaluated again because "
        "the connection to the cluster was lost",
    )
    assert run_sweep(tmp_path).notes == ()
