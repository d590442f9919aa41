"""Fake and real tensors, full and reduced depth, must tell the same story of a model."""

from __future__ import annotations

import pytest

from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Depth, Request, Result, Target, Tier
from compilewatch.sources.select import by_name
from compilewatch.sources.transformers import LibrarySource

# The first test waits for all answers, which are of many models with --matrix.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


SAMPLE = ("PeAudioModel",)
"""Sound, with breaks of three causes, one outside of the tracer; small enough to run for real when
reduced."""

MATRIX = (
    "AlbertModel",
    "BertModel",
    "BartForConditionalGeneration",
    "CLIPModel",  # images and text together, and an output that is no tensor
    "ConvNextModel",
    "DistilBertModel",
    "GPT2LMHeadModel",
    "HubertModel",
    "LayoutLMModel",
    "LlamaForCausalLM",
    "MBartModel",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "ResNetModel",
    "SeamlessM4TModel",
    "SwinModel",
    "T5Model",
    "ViTModel",
    "Wav2Vec2Model",
)
"""Others, which `make test-all` asks as well."""

EACH = [*SAMPLE, *(pytest.param(name, marks=pytest.mark.matrix) for name in MATRIX)]

Asked = dict[tuple[str, Tier, Depth], Result]
SETTINGS = (
    (Tier.FAKE, Depth.FULL),
    (Tier.FAKE, Depth.REDUCED),
    (Tier.REAL, Depth.REDUCED),
)


@pytest.fixture(scope="module")
def answers(
    request: pytest.FixtureRequest,
    warm_launcher: LocalLauncher,
    tmp_path_factory: pytest.TempPathFactory,
) -> Asked:
    matrix = request.config.getoption("--matrix")
    specs = by_name(LibrarySource().models(), (*SAMPLE, *MATRIX) if matrix else SAMPLE)
    requests = [
        Request(
            model=spec,
            target=Target(),
            key=f"{spec.name}-{tier}-{depth}",
            tier=tier,
            depth=depth,
            keep_artifacts=False,
        )
        for spec in specs
        for tier, depth in SETTINGS
    ]
    completed = warm_launcher.run(requests, tmp_path_factory.mktemp("scratch"))
    results = [done.result for done in completed]
    return {(r.request.model.name, r.request.tier, r.request.depth): r for r in results}


def reasons(result: Result) -> set[str]:
    return {found.fingerprint for found in result.breaks}


@pytest.mark.parametrize("model", EACH)
def test_tiers_agree(model: str, answers: Asked) -> None:
    fake, real = (answers[model, tier, Depth.REDUCED] for tier in (Tier.FAKE, Tier.REAL))
    assert (fake.tier, real.tier) == (Tier.FAKE, Tier.REAL)
    assert real.is_verdict, real.detail
    assert fake.status is real.status, fake.detail
    assert (fake.graphs, fake.graph_breaks) == (real.graphs, real.graph_breaks)
    assert reasons(fake) == reasons(real)
    assert fake.fullgraph is not None
    assert real.fullgraph is not None
    assert fake.fullgraph.accepted is real.fullgraph.accepted


@pytest.mark.parametrize("model", EACH)
def test_depths_have_the_same_reasons(model: str, answers: Asked) -> None:
    full, reduced = (answers[model, Tier.FAKE, depth] for depth in Depth)
    assert full.status is reduced.status, full.detail
    assert reasons(full) == reasons(reduced)


@pytest.mark.matrix
def test_the_sample_has_both_verdicts(answers: Asked) -> None:
    found = {result.status.value for result in answers.values()}
    assert {"pass", "graph_break"} <= found
