"""What a command about one target takes from the settings."""

from __future__ import annotations

import pytest

from compilewatch.cli.options import one_target, only_model
from compilewatch.cli.verbs import bisect
from compilewatch.config.settings import load_settings
from compilewatch.errors import UsageError
from tests import factories


@pytest.mark.parametrize(("value", "field"), [("on", True), ("off", False), ("default", None)])
def test_the_setting_for_functions_that_a_break_interrupts(value: str, field: bool | None) -> None:
    settings = load_settings({"nested_graph_breaks": value})
    target = one_target("dynamo", mode="eval", dynamic=None, settings=settings)
    assert target.nested_graph_breaks is field


def test_bisect_rejects_the_setting_for_a_target_without_it() -> None:
    arguments = ["BertModel", "--good", "5.5.4", "--bad", "5.23.0", "--torch", "2.15.0"]
    arguments += ["--target", "export", "--nested-graph-breaks", "on"]
    with pytest.raises(UsageError, match="--nested-graph-breaks is a setting of the target dynamo"):
        bisect.command.main(arguments, standalone_mode=False)


def test_one_device_at_a_time() -> None:
    settings = load_settings({"devices": ("cpu", "cuda")})
    with pytest.raises(UsageError, match="name one with --device"):
        one_target("dynamo", mode="eval", dynamic=None, settings=settings)


def test_a_command_about_one_model_asks_which_part_of_a_pipeline() -> None:
    parts = (factories.spec("diffusers/Codec"), factories.spec("TextTower"))
    assert only_model(parts[:1], "Codec") is parts[0]
    with pytest.raises(UsageError, match="name one of diffusers/Codec, TextTower"):
        only_model(parts, "PaintPipeline")
