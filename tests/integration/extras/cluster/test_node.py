from __future__ import annotations

from typing import cast

import pytest

from compilewatch.extras.cluster import node
from compilewatch.launchers.local.launcher import LocalLauncher
from tests import factories
from tests.fake_launcher import FakeLauncher


def test_a_trace_is_compressed_before_it_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(
        artifacts={"torch_trace/a.log": b"t" * 9000, "tlparse/raw.log": b"t" * 9000}
    )
    monkeypatch.setattr(node, "node_name", lambda: "here")
    monkeypatch.setattr(node._Slot, "_of", lambda *_: cast(LocalLauncher, launcher))
    (environment,) = launcher.environments()
    asked = node.NodeTask(request=factories.request(), digest=environment.digest)
    parcel = node._Slot(None).evaluate(asked, {})
    assert parcel.problem == ""
    assert set(parcel.artifacts) == {"torch_trace/a.log.zst", "tlparse.zip"}
    assert sum(map(len, parcel.artifacts.values())) < 300
