"""Text alone, each medium and decoding are evaluated on one model, and the worst is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import (
    Depth,
    Request,
    Result,
    Status,
    Target,
    Variants,
)
from compilewatch.sources.select import by_name
from compilewatch.sources.transformers.source import LibrarySource
from tests.sharing import jobs

pytestmark = [pytest.mark.torch]

OVERRIDES = Path(__file__).parents[3] / "inputs" / "overrides"

ASKED = {
    "LlavaForConditionalGeneration": Variants.ALL,
    "LlamaForCausalLM": Variants.ALL_DECODE,
    "CLIPModel": Variants.ALL_DECODE,
    "Qwen2AudioForConditionalGeneration": Variants.MAIN,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Takes half a minute: Dynamo itself captures each variant of real architectures."""
    specs = by_name(LibrarySource().models(), list(ASKED))
    requests = [
        Request(
            model=spec,
            target=Target(),
            key=spec.name.ljust(16, "-"),
            depth=Depth.REDUCED,
            variants=ASKED[spec.name],
            overrides_dir=str(OVERRIDES),
            keep_artifacts=False,
        )
        for spec in specs
    ]
    with LocalLauncher(jobs()) as launcher:
        done = list(launcher.run(requests, tmp_path_factory.mktemp("scratch")))
    return {each.result.request.model.name: each.result for each in done}


def test_a_model_that_breaks_with_an_image_passes_on_text_alone(results: dict[str, Result]) -> None:
    result = results["LlavaForConditionalGeneration"]
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


def test_decoding_uses_the_cache_of_a_prefill(results: dict[str, Result]) -> None:
    result = results["LlamaForCausalLM"]
    assert [v.name for v in result.variants] == [
        "prefill",
        "decode-dynamic-cache",
        "decode-static-cache",
    ]
    prefill, dynamic, static = result.variants
    for decode in (dynamic, static):
        assert decode.is_verdict, decode.detail
        sizes = {given.name: given.shape for given in decode.inputs}
        assert sizes["input_ids"] == (2, 1)
        assert sizes["attention_mask"] == (2, 33)
    assert prefill.ops == result.ops


def test_a_variant_that_the_model_does_not_take_has_no_verdict(results: dict[str, Result]) -> None:
    result = results["CLIPModel"]
    both, text = result.variants
    assert (
        (result.status, result.variant) == (Status.PASS, both.name) == (Status.PASS, "text+image")
    )
    assert text.status is Status.UNSUPPORTED
    assert "NoneType" in text.detail


def test_the_main_variant_alone_is_not_listed(results: dict[str, Result]) -> None:
    result = results["Qwen2AudioForConditionalGeneration"]
    assert (result.variants, result.variant) == ((), "")
    assert result.is_verdict
