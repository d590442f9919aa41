from __future__ import annotations

import pytest

from compilewatch.records import DeclaredDevice
from compilewatch.worker import device as devices
from compilewatch.worker.process import shortcuts, warmup

ALWAYS = [
    "read_verbosity_once",
    "name_no_functions",
    "describe_no_tensors",
    "examine_only_frames_above_dynamo",
    "format_each_place_once",
    "keep_each_text_once",
    "generate_no_code_for_assertions",
    "share_operators",
    "describe_tensors_at_once",
    "define_classes_once",
    "examine_each_class_once",
]
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
    """The shortcuts that a warm-up takes, in order. Only time would show that it does not."""
    calls: list[str] = []
    for name in [*ALWAYS, "ask_once_for_devices"]:
        monkeypatch.setattr(shortcuts, name, lambda name=name: calls.append(name))
    for name in ("import_modules", "_start_autograd", "_load_cudnn"):
        monkeypatch.setattr(warmup, name, lambda *_: None)
    monkeypatch.setattr(devices, "declare", lambda *_: None)
    return calls


def test_every_server_takes_the_shortcuts(taken: list[str]) -> None:
    warmup.warm_up(["dynamo"], single=True)
    assert taken == [*ALWAYS, "ask_once_for_devices"]


def test_a_device_that_is_declared_is_asked_for_each_time(taken: list[str]) -> None:
    warmup.warm_up(["dynamo"], single=True, device=H100)
    assert taken == ALWAYS


def test_a_server_for_a_present_device_does_not_ask_for_it(taken: list[str]) -> None:
    """Its children could not use the device that their parent has asked for."""
    warmup.warm_up(["xla"], single=True)
    assert taken == ALWAYS


@pytest.mark.parametrize(("device", "loads"), [(H100, 1), (None, 0)])
def test_a_server_for_a_declared_device_loads_what_its_attention_asks(
    taken: list[str], monkeypatch: pytest.MonkeyPatch, device: DeclaredDevice | None, loads: int
) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(warmup, "_load_cudnn", lambda: loaded.append(True))
    warmup.warm_up(["dynamo"], single=True, device=device)
    assert len(loaded) == loads
