"""Text alone, each medium and decoding are evaluated on one model, and the worst is shown."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.contract.targets import declared
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Depth, Request, Result, Status, Target, Variants
from compilewatch.sources import make_source
from compilewatch.sources.select import by_name

pytestmark = [pytest.mark.torch, pytest.mark.matrix]


Run = Callable[..., Result]


@pytest.fixture
def run(warm_launcher: LocalLauncher, tmp_path: Path) -> Run:
    """Takes seconds a model: Dynamo itself captures each variant of real architectures."""

    def run(name: str, variants: Variants = Variants.ALL, device: str = "cpu") -> Result:
        (spec,) = by_name(make_source("library").models, {name})
        request = Request(
            model=spec,
            target=Target(device=device),
            key="variants".ljust(16, "-"),
            device=declared(device),
            depth=Depth.REDUCED,
            variants=variants,
            keep_artifacts=False,
        )
        (completed,) = warm_launcher.run([request], tmp_path)
        return completed.result

    return run


def test_a_model_that_breaks_with_an_image_passes_on_text_alone(run: Run) -> None:
    result = run("LlavaForConditionalGeneration")
    assert {v.name: v.status for v in result.variants} == {
        "text+image": Status.GRAPH_BREAK,
        "text": Status.PASS,
    }
    assert (result.status, result.variant) == (Status.GRAPH_BREAK, "text+image")
    with_image, text = result.variants
    assert result.breaks == with_image.breaks != ()
    assert result.inputs == with_image.inputs
    assert "pixel_values" in {given.name for given in with_image.inputs}
    assert "pixel_values" not in {given.name for given in text.inputs}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        pytest.param("LlamaForCausalLM", {"input_ids": (2, 1)}, id="decoder"),
        pytest.param(
            "T5ForConditionalGeneration",
            {"decoder_input_ids": (2, 1), "encoder_outputs.last_hidden_state": (2, 32, 512)},
            id="encoder and decoder",
        ),
        pytest.param("Blip2ForConditionalGeneration", {"input_ids": (2, 1)}, id="image"),
        pytest.param("MambaForCausalLM", {"input_ids": (2, 1)}, id="state space"),
    ],
)
def test_a_decode_step_is_the_one_that_generate_makes(
    name: str, given: dict[str, tuple[int, ...]], run: Run
) -> None:
    """Each kind of model has its own cache, and drops other arguments after the prefill."""
    result = run(name, Variants.ALL_DECODE)
    variants = {v.name: v for v in result.variants}
    for cache, title in (("dynamic", "DynamicCache"), ("static", "StaticCache")):
        decode = variants[f"decode-{cache}-cache"]
        assert decode.is_verdict, decode.detail
        values = {tensor.name: tensor.value for tensor in decode.inputs}
        assert title in (values.get("past_key_values") or values["cache_params"])
        shapes = {tensor.name: tensor.shape for tensor in decode.inputs if tensor.shape}
        assert given.items() <= shapes.items()
        assert "pixel_values" not in shapes


def test_a_model_whose_generate_makes_no_static_cache_says_so(run: Run) -> None:
    dynamic, static = run("XLNetLMHeadModel", Variants.ALL_DECODE).variants[1:]
    assert dynamic.is_verdict
    assert static.status is Status.UNSUPPORTED
    assert static.detail == "InputsError: generate() makes no static cache for this model"


def test_a_variant_that_the_model_does_not_take_has_no_verdict(run: Run) -> None:
    result = run("CLIPModel", Variants.ALL_DECODE)
    both, text = result.variants
    assert (
        (result.status, result.variant) == (Status.PASS, both.name) == (Status.PASS, "text+image")
    )
    assert text.status is Status.UNSUPPORTED
    assert "NoneType" in text.detail


def test_a_probed_model_has_its_variants_too(run: Run) -> None:
    """Only a model that reads values is probed, which needs a second attempt.

    The eager runs before leave a view in an attribute of this model, which is to keep its value.
    """
    result = run("Qwen2VLModel", device="cuda")
    assert result.probed
    assert {v.name: v.status for v in result.variants} == {
        "text+image": Status.GRAPH_BREAK,
        "text": Status.PASS,
    }
