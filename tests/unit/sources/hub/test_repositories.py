"""Every kind of repository that the Hub has: what is built of it, or why nothing is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from compilewatch.plan import plan
from compilewatch.records import (
    ConfigBuild,
    LibraryBuild,
    ModelSpec,
    Options,
    Part,
    Quantization,
    Status,
    Target,
)
from compilewatch.sources.hub import pull
from tests import factories
from tests.unit.sources.hub.conftest import NAME, Kind, Read

ACORN = {"model_type": "acorn", "architectures": ["AcornModel"], "hidden_size": 8}
OAK = {"model_type": "oak", "architectures": ["OakModel"], "auto_map": {"AutoModel": "m.Oak"}}
WEIGHTS = {"model.safetensors": None}
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 9}
WHOLE = "class AcornModel, whole"


def quantised(**fields: Any) -> dict[str, Any]:
    return {"config.json": {**ACORN, "quantization_config": fields}, **WEIGHTS}


def module(path: str, kind: str) -> dict[str, str]:
    return {"path": path, "type": f"sentence_transformers.models.{kind}"}


CHAIN = [module("", "Transformer"), module("1_Pooling", "Pooling")]
PIPELINE = {
    "_class_name": "StableDiffusionPipeline",
    "unet": ["diffusers", "UNet2DConditionModel"],
    "text_encoder": ["transformers", "AcornModel"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "tokenizer": ["transformers", "AcornTokenizer"],
    "image_encoder": [None, None],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
    "requires_safety_checker": True,
}
LORA = {"peft_type": "LORA", "base_model_name_or_path": "org/acorn"}
LLAMA = {"dim": 64, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "vocab_size": -1}
GATED = "gated: accept its terms on the Hub and set HF_TOKEN"
BUILT = (
    "only models of Transformers, timm, diffusers, sentence-transformers and open_clip are built"
)

KINDS: dict[str, tuple[Kind, str]] = {
    "transformers": (Kind(files={"config.json": ACORN, **WEIGHTS}, library="transformers"), WHOLE),
    "transformers, another head": (
        Kind(
            files={"config.json": ACORN | {"architectures": ["AcornForSequenceClassification"]}},
            library="transformers",
        ),
        "class AcornForSequenceClassification, whole",
    ),
    "transformers, no architectures": (
        Kind(files={"config.json": {"model_type": "acorn"}, **WEIGHTS}, library="transformers"),
        "class AcornForCausalLM, whole",
    ),
    "transformers, no model_type": (
        Kind(files={"config.json": {"architectures": ["AcornModel"]}, **WEIGHTS}),
        WHOLE,
    ),
    "transformers, a backbone of timm": (
        Kind(files={"config.json": ACORN | {"use_timm_backbone": True}, **WEIGHTS}),
        "class AcornModel with timm, whole",
    ),
    "transformers, a part that timm builds": (
        Kind(files={"config.json": ACORN | {"vision_config": {"model_type": "timm_wrapper"}}}),
        "class AcornModel with timm, whole",
    ),
    "sentence-transformers": (
        Kind(
            files={
                "modules.json": CHAIN,
                "config.json": ACORN,
                "1_Pooling/config.json": {"word_embedding_dimension": 8},
                **WEIGHTS,
            },
            library="sentence-transformers",
        ),
        "sentence-transformers org/model, whole",
    ),
    "sentence-transformers, a module of its own": (
        Kind(
            files={
                "modules.json": [*CHAIN, {"path": "2_Own", "type": "own.Module"}],
                "config.json": ACORN,
                **WEIGHTS,
            },
            library="sentence-transformers",
        ),
        "class AcornModel, transformers",
    ),
    "sentence-transformers, no modules": (
        Kind(files={"config.json": ACORN, **WEIGHTS}, library="sentence-transformers"),
        WHOLE,
    ),
    "timm": (
        Kind(files={"config.json": {"architecture": "resnet50"}, **WEIGHTS}, library="timm"),
        "timm resnet50, whole",
    ),
    "timm_wrapper": (
        Kind(
            files={"config.json": ACORN | {"architecture": "resnet50"}, **WEIGHTS},
            library="transformers",
        ),
        WHOLE,
    ),
    "diffusers pipeline": (
        Kind(
            files={
                "model_index.json": PIPELINE,
                "unet/config.json": {"_class_name": "UNet2DConditionModel"},
                "text_encoder/config.json": ACORN | {"architectures": ["Other"]},
                "unet/diffusion_pytorch_model.safetensors": None,
            },
            library="diffusers",
        ),
        "#safety_checker component safety_checker: StableDiffusionSafetyChecker belongs to the "
        "pipeline, not to the models of diffusers; #text_encoder class AcornModel, component; "
        "#unet diffusers UNet2DConditionModel, component",
    ),
    "diffusers pipeline with code": (
        Kind(
            files={
                "model_index.json": {"unet": ["my_unet", "Mine"]},
                "unet/my_unet.py": None,
                "my_unet.py": None,
            },
            library="diffusers",
        ),
        "#unet remote code: component unet is a class of the repository",
    ),
    "diffusers model": (
        Kind(files={"config.json": {"_class_name": "AutoencoderKL"}, **WEIGHTS}),
        "diffusers AutoencoderKL, whole",
    ),
    "diffusers LoRA": (
        Kind(files={"lora.safetensors": None}, library="diffusers", tags=("lora",)),
        "a LoRA for diffusers, without the configuration of a model",
    ),
    "open_clip": (
        Kind(
            files={"open_clip_config.json": {"model_cfg": {}}, "config.json": ACORN, **WEIGHTS},
            library="open_clip",
        ),
        "open_clip org/model, whole",
    ),
    "PEFT adapter": (
        Kind(
            files={"adapter_config.json": LORA, "adapter_model.safetensors": None},
            library="peft",
            base=ACORN,
        ),
        "class AcornModel with the adapter adapter_config.json with peft, whole",
    ),
    "PEFT adapter, base not reachable": (
        Kind(files={"adapter_config.json": LORA, **WEIGHTS}, library="peft"),
        "PEFT adapter: the configuration of its base model org/acorn is not available",
    ),
    "PEFT adapter, base unknown": (
        Kind(
            files={"adapter_config.json": LORA, **WEIGHTS},
            library="peft",
            base={"model_type": "oak"},
        ),
        "PEFT adapter of org/acorn: transformers 9.9.9 has no model type oak",
    ),
    "GPTQ": (Kind(files=quantised(quant_method="gptq", bits=4)), f"{WHOLE}, gptq"),
    "GPTQ, older": (
        Kind(files={"config.json": ACORN, "quantize_config.json": {"bits": 4}, **WEIGHTS}),
        f"{WHOLE}, gptq",
    ),
    "AWQ": (Kind(files=quantised(quant_method="awq", bits=4)), f"{WHOLE}, awq"),
    "bitsandbytes 4 bit": (
        Kind(files=quantised(quant_method="bitsandbytes", load_in_4bit=True)),
        f"{WHOLE}, bitsandbytes-4bit",
    ),
    "bitsandbytes 8 bit": (
        Kind(files=quantised(load_in_8bit=True)),
        f"{WHOLE}, bitsandbytes-8bit",
    ),
    "FP8": (Kind(files=quantised(quant_method="fp8")), f"{WHOLE}, fp8"),
    "compressed-tensors": (
        Kind(files=quantised(quant_method="compressed-tensors")),
        f"{WHOLE}, compressed-tensors",
    ),
    "torchao": (Kind(files=quantised(quant_method="torchao")), f"{WHOLE}, torchao"),
    "quantised otherwise": (Kind(files=quantised(quant_method="hqq")), f"{WHOLE}, other"),
    "GGUF only": (
        Kind(files={"config.json": ACORN, "model-Q4.gguf": None}, library="transformers"),
        "not PyTorch: it has only GGUF weights",
    ),
    "ONNX only": (
        Kind(files={"config.json": ACORN, "onnx/model.onnx": None}, library="transformers.js"),
        "not PyTorch: it has only ONNX weights",
    ),
    "TensorFlow only": (
        Kind(files={"config.json": ACORN, "tf_model.h5": None}, library="transformers"),
        "not PyTorch: it has only TensorFlow weights",
    ),
    "Keras only": (
        Kind(files={"model.keras": None}, library="keras"),
        "not PyTorch: it has only Keras weights",
    ),
    "TensorFlow Lite only": (
        Kind(files={"model.tflite": None}),
        "not PyTorch: it has only TensorFlow Lite weights",
    ),
    "Flax only": (
        Kind(files={"config.json": ACORN, "flax_model.msgpack": None}, library="transformers"),
        "not PyTorch: it has only Flax weights",
    ),
    "MLX": (
        Kind(files={"config.json": ACORN, **WEIGHTS}, library="transformers", tags=("mlx",)),
        "not PyTorch: it has only MLX weights",
    ),
    "CTranslate2": (
        Kind(files={"config.json": {}, "model.bin": None, "vocabulary.txt": None}),
        "not PyTorch: it has only CTranslate2 weights",
    ),
    "OpenVINO": (
        Kind(files={"config.json": ACORN, "openvino_model.xml": None, "openvino_model.bin": None}),
        "not PyTorch: it has only OpenVINO weights",
    ),
    "Core ML": (
        Kind(files={"config.json": ACORN, "model.mlpackage/Data/weights/weight.bin": None}),
        "not PyTorch: it has only Core ML weights",
    ),
    **{
        f"other library: {name}": (
            Kind(files={"pytorch_model.bin": None}, library=name),
            f"a model of {shown}: {BUILT}",
        )
        for name, shown in (
            ("spacy", "spaCy"),
            ("fasttext", "fastText"),
            ("sklearn", "scikit-learn"),
            ("flair", "Flair"),
            ("speechbrain", "SpeechBrain"),
            ("nemo", "NeMo"),
            ("pyannote-audio", "pyannote.audio"),
            ("espnet", "ESPnet"),
            ("newlib", "newlib"),
        )
    },
    "other library, by its files": (
        Kind(files={"hyperparams.yaml": None, "embedding_model.ckpt": None}),
        f"a model of SpeechBrain: {BUILT}",
    ),
    "other library on a class of Transformers": (
        Kind(files={"config.json": ACORN, **WEIGHTS}, library="setfit"),
        "class AcornModel, transformers",
    ),
    "original files": (
        Kind(files={"params.json": LLAMA, "consolidated.00.pth": None}),
        "transformers 9.9.9 has no model type llama",
    ),
    "original files of an unknown form": (
        Kind(files={"params.json": {"d_model": 8}, "consolidated.00.pth": None}),
        "original weights (consolidated.00.pth) without a configuration of a known form",
    ),
    "gated without token": (
        Kind(files={"config.json": ACORN}, problem=GATED, gated=True),
        GATED,
    ),
    "gated with token": (Kind(files={"config.json": ACORN, **WEIGHTS}, gated=True), WHOLE),
    "remote code": (
        Kind(files={"config.json": OAK, **WEIGHTS}, library="transformers"),
        "remote code: its repository and revision are not in remote_code.toml",
    ),
    "remote code, listed": (
        Kind(files={"config.json": OAK, **WEIGHTS}, library="transformers", trusted=True),
        "class OakModel, whole",
    ),
    "unknown model_type": (
        Kind(files={"config.json": {"model_type": "oak"}, **WEIGHTS}),
        "transformers 9.9.9 has no model type oak",
    ),
    "config without anything": (
        Kind(files={"config.json": {"hidden_size": 8}, **WEIGHTS}),
        "its config.json names no model_type",
    ),
    "invalid config.json": (
        Kind(files={"config.json": '{"model_type": ', **WEIGHTS}),
        "invalid configuration: config.json: line 1: not JSON: Expecting value",
    ),
    "empty repository": (
        Kind(files={".gitattributes": None, "README.md": None}),
        "no model: the repository has no files but its description",
    ),
    "tokenizer only": (
        Kind(files={"tokenizer.json": None, "tokenizer_config.json": None, "vocab.txt": None}),
        "no model: the repository has only a tokenizer",
    ),
    "data only": (
        Kind(files={"train.parquet": None, "labels.csv": None}),
        "no model: the repository has only data files",
    ),
    "weights only": (
        Kind(files={"yolov8n.pt": None}),
        "PyTorch weights (yolov8n.pt) without a configuration that names their class",
    ),
    "code only": (
        Kind(files={"app.py": None}),
        "no model: the repository has neither weights nor a configuration of a known form",
    ),
}


def said(spec: ModelSpec) -> str:
    """`#component LIBRARY NAME, part, quantisation`, or the reason to skip it."""
    parts = [spec.name.removeprefix(NAME)] if spec.name != NAME else []
    if spec.skip_reason is not None:
        return " ".join([*parts, spec.skip_reason])
    build = spec.build
    assert isinstance(build, ConfigBuild | LibraryBuild)
    if isinstance(build, LibraryBuild):
        parts += [build.library, build.name]
    else:
        parts += ["class", build.class_name or "?"]
        if build.adapter_file is not None:
            parts += ["with the adapter", Path(build.adapter_file).name]
        if build.packages:
            parts += ["with", *build.packages]
    about = [str(spec.part), *([str(spec.quantization)] if spec.quantization else [])]
    return ", ".join([" ".join(parts), *about])


@pytest.mark.parametrize("name", KINDS)
def test_what_is_built_of_a_kind_of_repository_or_why_nothing_is(name: str, read: Read) -> None:
    kind, expected = KINDS[name]
    assert "; ".join(said(spec) for spec in read(kind)) == expected


def test_a_reason_survives_the_plan(read: Read) -> None:
    """Whatever is known of the class, and with the reviewed lines for packages of classes."""
    for name, (kind, expected) in KINDS.items():
        skipped = [spec for spec in read(kind) if spec.skip_reason is not None]
        if skipped:
            made = plan(skipped, [Target()], Options(), [factories.environment()]).skipped
            assert {(r.status, r.detail) for r in made} == {
                (Status.SKIPPED, spec.skip_reason) for spec in skipped
            }, (name, expected)


def test_original_files_are_built_as_the_class_of_transformers(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "converted", lambda params: {**ACORN, **params})
    (spec,) = read(KINDS["original files"][0])
    assert said(spec) == "class AcornModel, original"


def test_a_configuration_of_old_has_the_type_that_its_name_says(read: Read) -> None:
    kind = Kind(files={"config.json": SIZES, **WEIGHTS}, library="transformers")
    assert [said(spec) for spec in read(kind)] == ["its config.json names no model_type"]
    (spec,) = read(dataclasses.replace(kind, name="org/bio-acorn-base"))
    assert isinstance(spec.build, ConfigBuild)
    assert (spec.build.class_name, spec.family, spec.part) == (
        "AcornForCausalLM",
        "acorn",
        Part.WHOLE,
    )
    # Other sizes are those of other code.
    other = dataclasses.replace(kind, name="org/acorn", files={"config.json": {"d_model": 8}})
    assert read(other)[0].skip_reason == "its config.json names no model_type"


def test_an_adapter_of_diffusers_is_the_components_of_its_base(read: Read) -> None:
    base = {
        "model_index.json": PIPELINE,
        "unet/config.json": {"_class_name": "UNet2DConditionModel"},
        "text_encoder/config.json": ACORN,
    }
    weights = {"pytorch_lora_weights.safetensors": None}
    specs = {
        spec.component: spec
        for spec in read(Kind(files=weights, library="diffusers", base_pipeline=base))
    }
    assert specs.keys() == {"unet", "text_encoder", "safety_checker"}
    for name in ("unet", "text_encoder"):
        assert specs[name].part is Part.BASE_COMPONENT
        assert specs[name].skip_reason is None
        assert specs[name].name == f"{NAME}#{name}"
    assert isinstance(specs["unet"].build, LibraryBuild)
    assert specs["safety_checker"].skip_reason is not None


@pytest.mark.parametrize(
    ("library", "tags", "expected"),
    [
        ("diffusers", ["lora", "base_model:org/base"], "org/base"),
        ("diffusers", ["base_model:org/base", "base_model:adapter:org/base"], "org/base"),
        ("diffusers", ["base_model:org/other", "base_model:adapter:org/base"], "org/base"),
        # Weights that were derived from another model have their own configuration.
        ("diffusers", ["base_model:finetune:org/base"], None),
        ("diffusers", ["lora"], None),
        ("peft", ["base_model:adapter:org/base"], None),
    ],
)
def test_the_base_of_an_adapter_is_that_of_its_tags(
    library: str, tags: list[str], expected: str | None
) -> None:
    assert pull.base_pipeline(library, tags) == expected


def test_components_are_one_repository(read: Read) -> None:
    found = read(KINDS["diffusers pipeline"][0])
    assert {(spec.repository, spec.downloads) for spec in found} == {(NAME, 7)}
    assert [spec.component for spec in found] == ["safety_checker", "text_encoder", "unet"]


def test_builds_of_libraries_are_known_by_the_content_of_their_configuration(read: Read) -> None:
    kind = KINDS["sentence-transformers"][0]
    first, again, other = (
        read(Kind(files={**kind.files, "1_Pooling/config.json": {"dimension": size}}))[0].build
        for size in (8, 8, 16)
    )
    for build in (first, again, other):
        assert isinstance(build, LibraryBuild)
        assert (Path(build.configuration or "") / "modules.json").is_file()
    assert first == again
    assert isinstance(first, LibraryBuild)
    assert isinstance(other, LibraryBuild)
    assert first.configuration_sha256 != other.configuration_sha256


def test_the_quantisation_of_a_checkpoint_is_not_in_a_class_that_is_built_without_weights(
    read: Read,
) -> None:
    (spec,) = read(KINDS["AWQ"][0])
    assert (spec.quantization, spec.is_dequantized) == (Quantization.AWQ, True)
    (plain,) = read(KINDS["transformers"][0])
    assert (plain.quantization, plain.is_dequantized) == (None, False)
    assert plain.part is Part.WHOLE
