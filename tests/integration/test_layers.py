"""Tiers, depths, layers and environments on architectures of the library, as a sweep asks them."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from compilewatch.records import Depth, Performance, Phase, Request, Result, Status, Target, Tier
from compilewatch.sources import make_source
from compilewatch.sources.select import by_name
from tests.warm import WarmLauncher

# The first test waits for all results, which are of many models with --matrix.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("warm_launcher"),
]

AGREEING = ("PeAudioModel",)
"""Sound, with breaks of three causes, one outside of the tracer; small enough to run for real when
reduced."""

AGREEING_MATRIX = (
    "CLIPModel",  # images and text together, and an output that is no tensor
    "GPT2LMHeadModel",  # a cache comes out
    "T5Model",  # two inputs
)

EXPORTED: dict[str, str | None] = {"LlamaForCausalLM": None}
"""Architecture -> the code of what `torch.export` refuses it for, None where it takes it."""

EXPORTED_MATRIX: dict[str, str | None] = {
    "HubertModel": None,  # sound; parametrised weights
    "LongformerModel": "data_dependent_guard",  # text; the guard is on the values of a mask
    "Qwen2VLModel": "data_dependent_guard",  # images in a grid; the guard is on their sizes
    "T5Model": None,  # two inputs, and outputs of two kinds
}

Results = dict[tuple[str, Tier, Depth], Result]


def evaluated(
    folder: Path, names: Iterable[str], target: Target, *how: tuple[Tier, Depth]
) -> Results:
    requests = [
        Request(model=spec, target=target, key="", tier=tier, depth=depth, keep_artifacts=False)
        for spec in by_name(make_source("library").models, tuple(names))
        for tier, depth in how
    ]
    with WarmLauncher(2, (target.environment,)) as launcher:
        results = [done.result for done in launcher.run(requests, folder)]
    return {(r.request.model.name, r.request.tier, r.request.depth): r for r in results}


def matrix(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.matrix) for name in names]


@pytest.fixture(scope="module")
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    names = AGREEING + (AGREEING_MATRIX if request.config.getoption("--matrix") else ())
    how = [(Tier.FAKE, Depth.FULL), (Tier.FAKE, Depth.REDUCED), (Tier.REAL, Depth.REDUCED)]
    return evaluated(tmp_path_factory.mktemp("captured"), names, Target(), *how)


def reasons(result: Result) -> set[str]:
    return {graph_break.fingerprint for graph_break in result.breaks}


@pytest.mark.parametrize("model", [*AGREEING, *matrix(AGREEING_MATRIX)])
def test_tiers_and_depths_agree(model: str, captured: Results) -> None:
    full = captured[model, Tier.FAKE, Depth.FULL]
    fake, real = (captured[model, tier, Depth.REDUCED] for tier in (Tier.FAKE, Tier.REAL))
    assert (fake.tier, real.tier) == (Tier.FAKE, Tier.REAL)
    assert real.is_verdict, real.detail
    assert full.status is fake.status is real.status, fake.detail
    assert (fake.graphs, fake.graph_breaks) == (real.graphs, real.graph_breaks)
    assert reasons(full) == reasons(fake) == reasons(real)
    assert fake.fullgraph is not None
    assert real.fullgraph is not None
    assert fake.fullgraph.accepted is real.fullgraph.accepted


@pytest.fixture(scope="module")
def exports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    names = EXPORTED | (EXPORTED_MATRIX if request.config.getoption("--matrix") else {})
    target = Target(name="export", backend="non_strict")
    how = [(tier, Depth.REDUCED) for tier in (Tier.AUTO, Tier.REAL)]
    return evaluated(tmp_path_factory.mktemp("export"), names, target, *how)


@pytest.mark.parametrize("model", [*EXPORTED, *matrix(EXPORTED_MATRIX)])
def test_export_has_equal_results_in_both_tiers(model: str, exports: Results) -> None:
    code = (EXPORTED | EXPORTED_MATRIX)[model]
    for tier in (Tier.AUTO, Tier.REAL):
        result = exports[model, tier, Depth.REDUCED]
        assert result.is_verdict, result.detail
        assert (result.error.code if result.error else None) == code, (tier, result.detail)
        assert result.status is (Status.ERROR if code else Status.PASS)
        # An export that passes needs no real tensors.
        assert code or tier is Tier.REAL or result.tier is Tier.FAKE


@pytest.mark.matrix
def test_inductor_compiles_runs_and_is_right(tmp_path: Path) -> None:
    """test_inductor.py shows what else can go wrong, on small modules."""
    how = (Tier.REAL, Depth.REDUCED)
    (result,) = evaluated(tmp_path, ["BertModel"], Target(name="inductor"), how).values()
    assert (result.status, result.phase) == (Status.PASS, Phase.DONE), result.detail
    assert result.numerics is not None
    assert (result.numerics.deterministic, result.numerics.matches) == (True, True)
    speed = result.details
    assert isinstance(speed, Performance)
    assert None not in (speed.warm_compile_seconds, speed.speedup, speed.recompiles)


@pytest.mark.matrix
@pytest.mark.xla
def test_an_older_torch_breaks_in_the_model_and_nowhere_else(tmp_path: Path) -> None:
    """An older torch is asked in cli/test_env.py, too."""
    how, target = (Tier.AUTO, Depth.REDUCED), Target(environment="xla")
    (result,) = evaluated(tmp_path, ["LongformerModel"], target, how).values()
    assert (result.status, result.tier) == (Status.GRAPH_BREAK, Tier.FAKE), result.detail
    assert result.error is None
    file = "transformers/models/longformer/modeling_longformer.py"
    assert {graph_break.file for graph_break in result.breaks} == {file}
