"""Layers and environments on architectures of the library, as a sweep asks them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from compilewatch.records import (
    Depth,
    ModelSpec,
    Performance,
    Phase,
    Request,
    Result,
    Status,
    Target,
    Tier,
)
from compilewatch.sources.select import by_name
from compilewatch.sources.transformers import LibrarySource
from tests.warm import WarmLauncher

# The first test waits for all answers, which are of many models with --matrix.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("warm_launcher"),
]


EXPORTED = {
    "LlamaForCausalLM": None,  # a decoder, whose cache comes out
}
"""Architecture -> the code of what `torch.export` refuses it for, None where it takes it."""

MATRIX = {
    "AlbertModel": None,
    "BartForConditionalGeneration": None,
    "BertModel": None,
    "CLIPModel": None,
    "DistilBertModel": None,
    "Gemma3ForConditionalGeneration": None,
    "GPT2LMHeadModel": None,
    "HubertModel": None,  # sound; parametrised weights
    "LayoutLMModel": None,
    "LongformerModel": "data_dependent_guard",  # text; the guard is on the values of a mask
    "MixtralForCausalLM": None,
    "Qwen2AudioForConditionalGeneration": None,
    "Qwen2VLModel": "data_dependent_guard",  # images in a grid; the guard is on their sizes
    "ResNetModel": None,
    "SmolVLMModel": None,
    "SwinModel": None,
    "T5Model": None,  # two inputs, and outputs of two kinds
    "ViltModel": "data_dependent_guard",  # images and text; the guard is on a count of patches
    "ViTModel": None,
}
"""Others of the same kinds, which `make test-all` asks as well."""

# cli/test_profile.py compiles in a child of the server, and test_inductor.py shows what else can go
# wrong, on small modules.
COMPILED_MATRIX = ("BertModel", "GPT2LMHeadModel", "ViTModel")


def library(names: Iterable[str]) -> Sequence[ModelSpec]:
    return by_name(LibrarySource().models(), tuple(names))


def ask(
    folder: Path,
    specs: Iterable[ModelSpec],
    target: Target,
    tiers: Iterable[Tier],
) -> dict[tuple[str, Tier], Result]:
    requests = [
        Request(
            model=spec,
            target=target,
            key=f"{spec.name}-{tier}",
            tier=tier,
            depth=Depth.REDUCED,
            keep_artifacts=False,
        )
        for spec in specs
        for tier in tiers
    ]
    with WarmLauncher(2, (target.environment,)) as launcher:
        results = [done.result for done in launcher.run(requests, folder)]
    return {(r.request.model.name, r.request.tier): r for r in results}


@pytest.fixture(scope="module")
def exports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, Tier], Result]:
    target = Target(name="export", backend="non_strict")
    names = EXPORTED | MATRIX if request.config.getoption("--matrix") else EXPORTED
    folder = tmp_path_factory.mktemp("export")
    return ask(folder, library(names), target, (Tier.AUTO, Tier.REAL))


@pytest.mark.parametrize(
    ("model", "code"),
    [
        *EXPORTED.items(),
        *(pytest.param(*item, marks=pytest.mark.matrix) for item in MATRIX.items()),
    ],
)
def test_export_has_equal_results_in_both_tiers(
    model: str, code: str | None, exports: dict[tuple[str, Tier], Result]
) -> None:
    for tier in (Tier.AUTO, Tier.REAL):
        found = exports[model, tier]
        assert found.is_verdict, found.detail
        assert (found.error.code if found.error else None) == code, (tier, found.detail)
        assert found.status is (Status.ERROR if code else Status.PASS)


def test_most_exports_need_no_real_tensors(exports: dict[tuple[str, Tier], Result]) -> None:
    passed = [r for (_, tier), r in exports.items() if tier is Tier.AUTO and not r.error]
    assert {r.tier for r in passed} == {Tier.FAKE}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Tier], Result]:
    folder = tmp_path_factory.mktemp("inductor")
    return ask(folder, library(COMPILED_MATRIX), Target(name="inductor"), (Tier.REAL,))


@pytest.mark.matrix
@pytest.mark.parametrize("model", COMPILED_MATRIX)
def test_inductor_compiles_runs_and_is_right(
    model: str, compiled: dict[tuple[str, Tier], Result]
) -> None:
    found = compiled[model, Tier.REAL]
    assert (found.status, found.phase) == (Status.PASS, Phase.DONE), found.detail
    assert found.numerics is not None
    assert (found.numerics.deterministic, found.numerics.matches) == (True, True)
    speed = found.details
    assert isinstance(speed, Performance)
    assert speed.warm_compile_seconds is not None
    assert speed.speedup is not None
    assert speed.recompiles is not None


# An older torch is asked in cli/test_env.py, too.
@pytest.mark.matrix
@pytest.mark.xla
def test_an_older_torch_breaks_in_the_model_and_nowhere_else(tmp_path: Path) -> None:
    target = Target(environment="xla")
    asked = ask(tmp_path, library(["LongformerModel"]), target, [Tier.AUTO])
    found = asked["LongformerModel", Tier.AUTO]
    assert (found.status, found.tier) == (Status.GRAPH_BREAK, Tier.FAKE), found.detail
    assert found.error is None
    assert {each.file for each in found.breaks} == {
        "transformers/models/longformer/modeling_longformer.py"
    }
