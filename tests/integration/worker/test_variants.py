"""Text alone, each medium and decoding are evaluated on one model, and the worst is shown."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from compilewatch.contract.targets import declared
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Depth, Request, Result, Status, Target, Variants
from compilewatch.sources.select import by_name
from compilewatch.sources.transformers import LibrarySource

pytestmark = [pytest.mark.torch, pytest.mark.matrix]


ASKED = (
    ("LlavaForConditionalGeneration", Variants.ALL),
    ("LlamaForCausalLM", Variants.ALL_DECODE),
    ("CLIPModel", Variants.ALL_DECODE),
    ("CLIPModel", Variants.MAIN),
)

Results = dict[tuple[str, Variants], Result]


def run(
    launcher: LocalLauncher, scratch: Path, asked: Iterable[tuple[str, Variants]], device: str
) -> Results:
    specs = {spec.name: spec for spec in by_name(LibrarySource().models(), {n for n, _ in asked})}
    requests = [
        Request(
            model=specs[name],
            target=Target(device=device),
            key=f"{name}-{variants}".ljust(16, "-"),
            device=declared(device),
            depth=Depth.REDUCED,
            variants=variants,
            keep_artifacts=False,
        )
        for name, variants in asked
    ]
    results = [each.result for each in launcher.run(requests, scratch)]
    return {(r.request.model.name, r.request.variants): r for r in results}


@pytest.fixture(scope="module")
def results(warm_launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Takes half a minute: Dynamo itself captures each variant of real architectures."""
    return run(warm_launcher, tmp_path_factory.mktemp("scratch"), ASKED, "cpu")


def test_a_model_that_breaks_with_an_image_passes_on_text_alone(results: Results) -> None:
    result = results["LlavaForConditionalGeneration", Variants.ALL]
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


def test_decoding_uses_the_cache_of_a_prefill(results: Results) -> None:
    result = results["LlamaForCausalLM", Variants.ALL_DECODE]
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


def test_a_variant_that_the_model_does_not_take_has_no_verdict(results: Results) -> None:
    result = results["CLIPModel", Variants.ALL_DECODE]
    both, text = result.variants
    assert (
        (result.status, result.variant) == (Status.PASS, both.name) == (Status.PASS, "text+image")
    )
    assert text.status is Status.UNSUPPORTED
    assert "NoneType" in text.detail
    result = results["CLIPModel", Variants.MAIN]
    assert (result.variants, result.variant, result.is_verdict) == ((), "", True)


def test_a_probed_model_has_its_variants_too(warm_launcher: LocalLauncher, tmp_path: Path) -> None:
    """Takes ten seconds: only a model that reads values is probed, which needs a second attempt.

    The eager runs before leave a view in an attribute of this model, which is to keep its value.
    """
    asked = [("Qwen2VLModel", Variants.ALL)]
    (result,) = run(warm_launcher, tmp_path, asked, "cuda").values()
    assert result.probed
    assert {v.name: v.status for v in result.variants} == {
        "text+image": Status.GRAPH_BREAK,
        "text": Status.PASS,
    }
