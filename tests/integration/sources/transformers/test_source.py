import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compilewatch.sources import transformers
from compilewatch.sources.popularity import COLUMNS
from compilewatch.sources.transformers import LibrarySource
from tests import factories

# What `dir(transformers)` holds and this source does not, for transformers 5.23.0.
ABSTRACT = {
    # Deprecated spellings of …PreTrainedModel, and bases: they make no layers.
    *("BartPretrainedModel", "PretrainedBartModel", "PretrainedFSMTModel"),
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


@pytest.mark.torch
@pytest.mark.matrix
def test_the_scan_finds_what_transformers_exports_with_its_model_types(
    installed: LibrarySource, scans: Path
) -> None:
    """Only Transformers itself, in a separate process, shows what a scan of its text misses."""
    command = [sys.executable, "-W", "ignore", "-c", ENUMERATE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    types: dict[str, str] = json.loads(done.stdout)
    types = {n: t for n, t in types.items() if not n.endswith("PreTrainedModel")}
    endings = ("Model", "ForCausalLM", "ForConditionalGeneration")
    real = {name for name in types if name.endswith(endings)}
    ours = {spec.name for spec in installed.models()}
    assert len(real) == 997
    assert real - ours == ABSTRACT | NOT_AN_ARCHITECTURE
    assert ours - real <= NEEDS_TORCHAUDIO
    every = LibrarySource(factories.places(heads="all", cache=str(scans))).models()
    assert len(every) > 1.5 * len(ours)
    assert not {s.name for s in every if types.get(s.name, s.family) not in (s.family, "")}


def test_the_primary_class_is_the_one_people_load(installed: LibrarySource, scans: Path) -> None:
    expected = {
        "bert": "BertModel",  # an encoder, although it has a causal head
        "llama": "LlamaForCausalLM",
        "gpt2": "GPT2LMHeadModel",
        "t5": "T5ForConditionalGeneration",
        "marian": "MarianMTModel",
        "whisper": "WhisperForConditionalGeneration",
        "vit": "ViTModel",
        "clip": "CLIPModel",
        "llava": "LlavaForConditionalGeneration",
        "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
        "wav2vec2": "Wav2Vec2Model",
    }
    primaries = transformers.primary_classes(transformers.read_library(cache=scans))
    assert {family: primaries[family] for family in expected} == expected
    models = installed.models()
    first = {spec.family: spec for spec in reversed(models)}
    assert {family: first[family].name for family in expected} == expected
    assert first["bert"].checkpoint == "google-bert/bert-base-uncased"
    assert (first["bert"].downloads or 0) > 300_000_000
    assert sum(spec.checkpoint is not None for spec in models) > 900


def test_task_groups(installed: LibrarySource) -> None:
    expected = {
        "BertModel": "text",
        "T5ForConditionalGeneration": "encoder-decoder",
        "SamModel": "vision",
        "VideoMAEModel": "video",
        "WhisperForConditionalGeneration": "audio",
        "EncodecModel": "audio",
        "CLIPModel": "multimodal",
        "CLIPTextModel": "text",
        "CLIPVisionModel": "vision",
        "VisionEncoderDecoderModel": "multimodal",
        "Qwen2AudioForConditionalGeneration": "multimodal",
        "LayoutLMv3Model": "document",
        "PatchTSTModel": "time-series",
        "DecisionTransformerModel": "other",
    }
    tasks = {spec.name: spec.task for spec in installed.models()}
    assert {name: tasks[name] for name in expected} == expected


def test_every_class_is_built_from_its_configuration(scans: Path) -> None:
    """Only the complete library has heads that a configuration cannot name."""
    library = transformers.read_library(cache=scans)
    resolver = transformers.Resolver(library)
    heads = [
        cls
        for cls in transformers.concrete_classes(library)
        if cls.model_type in library.model_types
    ]
    assert len(heads) > 500
    for head in heads:
        config = {"model_type": head.model_type, "architectures": [head.name]}
        spec = resolver.resolve(factories.spec("model"), Path("config.json"), config)
        build: Any = spec.build
        assert (build.class_name, spec.skip_reason) == (head.name, None)


def test_most_used_first_then_by_name(miniature: Path, tmp_path: Path) -> None:
    figures = tmp_path / "popularity.csv"
    figures.write_text(f"{','.join(COLUMNS)}\nb-eye,7,1,org/eye,7\n")
    settings = {"popularity_file": str(figures), "cache": str(tmp_path / "cache")}
    models = LibrarySource(factories.places(miniature, **settings)).models()
    assert [(s.name, s.family, s.downloads) for s in models] == [
        ("BEyeModel", "b-eye", 7),
        ("BEyeToolModel", "b-eye", 7),
        ("AcornForCausalLM", "acorn", None),
        ("AcornModel", "acorn", None),
        ("AcornPlainModel", "acorn", None),
        ("AcornTextModel", "acorn_text", None),
    ]
    missing = {"BEyeModel": "needs no_such_backend, which is not installed"}
    assert {s.name: s.skip_reason for s in models if s.skip_reason} == missing
    all_heads = LibrarySource(factories.places(miniature, heads="all", **settings))
    every = {spec.name for spec in all_heads.models()}
    assert every - {spec.name for spec in models} == {"AcornForSequenceClassification"}
