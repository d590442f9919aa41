from __future__ import annotations

import pytest

from compilewatch.records import DeclaredDevice
from compilewatch.worker import device as devices
from compilewatch.worker.process import shortcuts, warmup

H100 = DeclaredDevice(
    name="H100",
    product="NVIDIA H100",
    capability=(9, 0),
    memory_bytes=1,
    multiprocessors=1,
    bfloat16=True,
)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shortcuts that a warm-up takes. Only time would show that it takes none."""
    calls: list[str] = []
    monkeypatch.setattr(shortcuts, "take", lambda: calls.append("all"))
    for name in ("import_modules", "_start_autograd", "_load_cudnn"):
        monkeypatch.setattr(warmup, name, lambda *_: None)
    monkeypatch.setattr(devices, "declare", lambda *_: None)
    return calls


@pytest.mark.parametrize("device", [None, H100])
def test_every_server_takes_the_shortcuts(taken: list[str], device: DeclaredDevice | None) -> None:
    warmup.warm_up(["dynamo"], single=True, device=device)
    assert taken == ["all"]


@pytest.mark.parametrize(("device", "loads"), [(H100, 1), (None, 0)])
def test_a_server_for_a_declared_device_loads_what_its_attention_needs(
    taken: list[str], monkeypatch: pytest.MonkeyPatch, device: DeclaredDevice | None, loads: int
) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(warmup, "_load_cudnn", lambda: loaded.append(True))
    warmup.warm_up(["dynamo"], single=True, device=device)
    assert len(loaded) == loads
