"""What a command about one target takes from the settings."""

from __future__ import annotations

import pytest

from compilewatch.api import choose
from compilewatch.api.choose import one_model, one_target
from compilewatch.config import load_settings
from compilewatch.errors import UsageError
from tests import factories


@pytest.mark.parametrize(("value", "field"), [("on", True), ("off", False), ("default", None)])
def test_the_setting_for_functions_that_a_break_interrupts(value: str, field: bool | None) -> None:
    settings = load_settings({"nested_graph_breaks": value})
    target = one_target("dynamo", mode="eval", dynamic=None, settings=settings)
    assert target.nested_graph_breaks is field


def test_one_device_at_a_time() -> None:
    settings = load_settings({"devices": ("cpu", "cuda")})
    with pytest.raises(UsageError, match="name one with --device"):
        one_target("dynamo", mode="eval", dynamic=None, settings=settings)


def test_a_command_about_one_model_names_the_components_of_a_pipeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = tuple(factories.spec(f"org/pipe#{name}", source="hub") for name in ("unet", "vae"))
    settings = load_settings({})
    monkeypatch.setattr(choose, "choose_models", lambda *_, **__: (parts, ""))
    with pytest.raises(UsageError, match="name one of org/pipe#unet, org/pipe#vae"):
        one_model(settings, "org/pipe")
    monkeypatch.setattr(choose, "choose_models", lambda *_, **__: (parts[:1], ""))
    assert one_model(settings, "org/pipe#unet") == parts[0]
