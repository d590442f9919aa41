from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compilewatch.errors import UsageError
from compilewatch.sources.popularity import figures_of, popularity_csv
from compilewatch.sources.transformers import (
    LibrarySource,
    Resolver,
    concrete_classes,
    primary_classes,
    read_library,
)

# What `dir(transformers)` holds and this source does not, for transformers 5.23.0.
ABSTRACT = {
    # Deprecated spellings of …PreTrainedModel, and bases: they make no layers.
    "BartPretrainedModel",
    "PretrainedBartModel",
    "PretrainedFSMTModel",
    "Qwen2_5OmniPreTrainedModelForConditionalGeneration",
    "Qwen3OmniMoePreTrainedModelForConditionalGeneration",
}
NOT_AN_ARCHITECTURE = {"BayesianDetectorModel"}  # of generation/watermarking.py
# What this source holds and `dir(transformers)` replaces by a placeholder, without torchaudio.
NEEDS_TORCHAUDIO = {"HiggsAudioV2TokenizerModel"}

ENUMERATE = """
import inspect, json, sys, transformers
from transformers import PreTrainedModel
found = {}
for name in dir(transformers):
    each = getattr(transformers, name)
    if inspect.isclass(each) and issubclass(each, PreTrainedModel):
        found[name] = getattr(each.config_class, "model_type", None)
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def enumerated() -> dict[str, str]:
    """Model type by name of class, from Transformers itself, in a separate process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENUMERATE],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return {n: t for n, t in found.items() if not n.endswith("PreTrainedModel")}


@pytest.mark.torch
@pytest.mark.matrix
def test_the_scan_finds_what_transformers_exports(
    installed: LibrarySource, enumerated: dict[str, str]
) -> None:
    endings = ("Model", "ForCausalLM", "ForConditionalGeneration")
    real = {name for name in enumerated if name.endswith(endings)}
    ours = {spec.name for spec in installed.models()}
    assert len(real) == 997
    assert real - ours == ABSTRACT | NOT_AN_ARCHITECTURE
    assert ours - real <= NEEDS_TORCHAUDIO


@pytest.mark.torch
@pytest.mark.matrix
def test_families_are_the_model_types_that_transformers_gives(
    installed: LibrarySource, scans: Path, enumerated: dict[str, str]
) -> None:
    every = LibrarySource(heads="all", cache=scans).models()
    assert len(every) > 1.5 * len(installed.models())
    differing = {s.name for s in every if enumerated.get(s.name, s.family) not in (s.family, "")}
    assert differing == set()


@pytest.mark.parametrize(
    ("family", "primary"),
    [
        ("bert", "BertModel"),  # an encoder, although it has a causal head
        ("llama", "LlamaForCausalLM"),
        ("gpt2", "GPT2LMHeadModel"),
        ("t5", "T5ForConditionalGeneration"),
        ("marian", "MarianMTModel"),
        ("whisper", "WhisperForConditionalGeneration"),
        ("vit", "ViTModel"),
        ("clip", "CLIPModel"),
        ("llava", "LlavaForConditionalGeneration"),
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("wav2vec2", "Wav2Vec2Model"),
    ],
)
def test_the_primary_class_is_the_one_people_load(
    installed: LibrarySource, scans: Path, family: str, primary: str
) -> None:
    assert primary_classes(read_library(cache=scans))[family] == primary
    assert next(s for s in installed.models() if s.family == family).name == primary


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("BertModel", "text"),
        ("T5ForConditionalGeneration", "encoder-decoder"),
        ("ViTModel", "vision"),
        ("SamModel", "vision"),
        ("VideoMAEModel", "video"),
        ("Wav2Vec2Model", "audio"),
        ("WhisperForConditionalGeneration", "audio"),
        ("EncodecModel", "audio"),
        ("CLIPModel", "multimodal"),
        ("CLIPTextModel", "text"),
        ("CLIPVisionModel", "vision"),
        ("LlavaForConditionalGeneration", "multimodal"),
        ("VisionEncoderDecoderModel", "multimodal"),
        ("Qwen2AudioForConditionalGeneration", "multimodal"),
        ("LayoutLMv3Model", "document"),
        ("PatchTSTModel", "time-series"),
        ("DecisionTransformerModel", "other"),
    ],
)
def test_task_groups(installed: LibrarySource, name: str, task: str) -> None:
    assert next(s for s in installed.models() if s.name == name).task == task


def test_every_class_is_built_from_its_configuration(scans: Path) -> None:
    """Only the complete library has heads that a configuration cannot name."""
    library = read_library(cache=scans)
    resolver = Resolver(library)
    heads = [cls for cls in concrete_classes(library) if cls.model_type in library.model_types]
    assert len(heads) > 500
    for head in heads:
        config = {"model_type": head.model_type, "architectures": [head.name]}
        resolved = resolver.resolve(Path("config.json"), config)
        assert (resolved.build.class_name, resolved.skip_reason) == (head.name, None)


def test_reference_checkpoints_and_downloads(installed: LibrarySource) -> None:
    bert = next(s for s in installed.models() if s.name == "BertModel")
    assert bert.checkpoint == "google-bert/bert-base-uncased"
    assert bert.downloads is not None
    assert bert.downloads > 300_000_000
    assert sum(s.checkpoint is not None for s in installed.models()) > 900


def test_most_used_first_then_by_name(miniature: Path, tmp_path: Path) -> None:
    figures = tmp_path / "popularity.csv"
    figures.write_text(popularity_csv(figures_of([("b-eye", "org/eye", 7)]), {}))
    source = LibrarySource(package=miniature, popularity=figures, cache=tmp_path / "cache")
    found = [(s.name, s.family, s.downloads) for s in source.models()]
    assert found == [
        ("BEyeModel", "b-eye", 7),
        ("BEyeToolModel", "b-eye", 7),
        ("AcornForCausalLM", "acorn", None),
        ("AcornModel", "acorn", None),
        ("AcornPlainModel", "acorn", None),
        ("AcornTextModel", "acorn_text", None),
    ]


def test_missing_backends_are_a_reason_to_skip(miniature: Path, tmp_path: Path) -> None:
    source = LibrarySource(package=miniature, cache=tmp_path / "cache")
    reasons = {s.name: s.skip_reason for s in source.models() if s.skip_reason}
    assert reasons == {"BEyeModel": "needs no_such_backend, which is not installed"}


def test_all_heads(miniature: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    default = {s.name for s in LibrarySource(package=miniature, cache=cache).models()}
    every = LibrarySource(heads="all", package=miniature, cache=cache).models()
    assert {s.name for s in every} - default == {"AcornForSequenceClassification"}
    with pytest.raises(UsageError, match="default or all"):
        LibrarySource(heads="most")
