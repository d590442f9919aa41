"""Fake and real tensors, full and reduced depth, must tell the same story of a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Depth, Request, Result, Target, Tier
from compilewatch.sources.select import by_name
from compilewatch.sources.transformers.source import LibrarySource

pytestmark = pytest.mark.torch

OVERRIDES = Path(__file__).parents[1] / "inputs" / "overrides"

# Of each modality, with and without breaks; small enough to run for real at reduced size.
SAMPLE = (
    "AlbertModel",
    "BartForConditionalGeneration",
    "BertModel",
    "CLIPModel",
    "ConvNextModel",
    "DistilBertModel",
    "GPT2LMHeadModel",
    "HubertModel",
    "LayoutLMModel",
    "LlamaForCausalLM",
    "SeamlessM4TModel",
    "MBartModel",
    "MistralForCausalLM",
    "PeAudioModel",
    "Qwen2ForCausalLM",
    "ResNetModel",
    "SwinModel",
    "T5Model",
    "ViTModel",
    "Wav2Vec2Model",
)

Asked = dict[tuple[str, Tier, Depth], Result]
SETTINGS = (
    (Tier.FAKE, Depth.FULL),
    (Tier.FAKE, Depth.REDUCED),
    (Tier.REAL, Depth.REDUCED),
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    specs = by_name(LibrarySource().models(), SAMPLE)
    requests = [
        Request(
            model=spec,
            target=Target(),
            key=f"{spec.name}-{tier}-{depth}",
            tier=tier,
            depth=depth,
            overrides_dir=str(OVERRIDES),
            keep_artifacts=False,
        )
        for spec in specs
        for tier, depth in SETTINGS
    ]
    with LocalLauncher(jobs=os.cpu_count()) as launcher:
        results = [
            done.result for done in launcher.run(requests, tmp_path_factory.mktemp("scratch"))
        ]
    return {(r.request.model.name, r.request.tier, r.request.depth): r for r in results}


def reasons(result: Result) -> set[str]:
    return {found.fingerprint for found in result.breaks}


@pytest.mark.parametrize("model", SAMPLE)
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


@pytest.mark.parametrize("model", SAMPLE)
def test_depths_have_the_same_reasons(model: str, answers: Asked) -> None:
    full, reduced = (answers[model, Tier.FAKE, depth] for depth in Depth)
    assert full.status is reduced.status, full.detail
    assert reasons(full) == reasons(reduced)


def test_the_sample_has_both_verdicts(answers: Asked) -> None:
    found = {result.status.value for result in answers.values()}
    assert {"pass", "graph_break"} <= found
