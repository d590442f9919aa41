"""Every kind of repository that the Hub has: what is built of it, or why nothing is."""

from __future__ import annotations

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
from compilewatch.sources.hub import pull, repositories
from compilewatch.sources.hub.repositories import converted, converted_mamba, quantization
from tests import factories
from tests.unit.sources.hub.conftest import NAME, Read

ACORN = {"model_type": "acorn", "architectures": ["AcornModel"], "hidden_size": 8}
OAK = {"model_type": "oak", "architectures": ["OakModel"], "auto_map": {"AutoModel": "m.Oak"}}
CONFIG = {"config.json": ACORN, "model.safetensors": None}
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 9}
WHOLE = "class AcornModel, whole"
UNET = {"_class_name": "UNet2DConditionModel"}
LORA = {"peft_type": "LORA", "base_model_name_or_path": "org/acorn"}
LLAMA = {"dim": 64, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "vocab_size": -1}
GATED = "gated: accept its terms on the Hub and set HF_TOKEN"
BUILT = (
    "only models of Transformers, timm, diffusers, sentence-transformers and open_clip are built"
)


def config(**fields: Any) -> dict[str, Any]:
    return {**CONFIG, "config.json": ACORN | fields}


def chain(*own: str) -> dict[str, Any]:
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": p, "type": f"sentence_transformers.models.{k}"} for p, k in kinds.items()]
    modules += [{"path": name, "type": name} for name in own]
    pooling = {"1_Pooling/config.json": {"word_embedding_dimension": 8}}
    return {"modules.json": modules, **CONFIG, **pooling}


PIPELINE = {
    "model_index.json": {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "text_encoder": ["transformers", "AcornModel"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "tokenizer": ["transformers", "AcornTokenizer"],
        "image_encoder": [None, None],
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "requires_safety_checker": True,
    },
    "unet/config.json": UNET,
    "text_encoder/config.json": ACORN | {"architectures": ["Other"]},
}
LORA_FILES = {"adapter_config.json": LORA, "adapter_model.safetensors": None}
BASE = {"config.json": ACORN}

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "transformers": (CONFIG, {"library": "transformers"}, WHOLE),
    "transformers, no model_type": (
        {"config.json": {"architectures": ["AcornModel"]}},
        {},
        WHOLE,
    ),
    "a backbone of timm": (config(use_timm_backbone=True), {}, "class AcornModel with timm, whole"),
    "a part that timm builds": (
        config(vision_config={"model_type": "timm_wrapper"}),
        {},
        "class AcornModel with timm, whole",
    ),
    "sentence-transformers": (
        chain(),
        {"library": "sentence-transformers"},
        "sentence-transformers org/model, whole",
    ),
    "a module of its own": (
        chain("own.Module"),
        {"library": "sentence-transformers"},
        "class AcornModel, transformers",
    ),
    "no modules": (CONFIG, {"library": "sentence-transformers"}, WHOLE),
    "timm": (
        {"config.json": {"architecture": "resnet50"}},
        {"library": "timm"},
        "timm resnet50, whole",
    ),
    "timm_wrapper": (config(architecture="resnet50"), {"library": "transformers"}, WHOLE),
    "diffusers pipeline": (
        PIPELINE,
        {"library": "diffusers"},
        "#safety_checker component safety_checker: StableDiffusionSafetyChecker belongs to the "
        "pipeline, not to the models of diffusers; #text_encoder class AcornModel, component; "
        "#unet diffusers UNet2DConditionModel, component",
    ),
    "diffusers pipeline with code": (
        {"model_index.json": {"unet": ["my_unet", "Mine"]}, "my_unet.py": None},
        {"library": "diffusers"},
        "#unet remote code: component unet is a class of the repository",
    ),
    "diffusers adapter": (
        {"pytorch_lora_weights.safetensors": None},
        {"library": "diffusers", "base": PIPELINE},
        "#safety_checker component safety_checker: StableDiffusionSafetyChecker belongs to the "
        "pipeline, not to the models of diffusers; #text_encoder class AcornModel, base_component; "
        "#unet diffusers UNet2DConditionModel, base_component",
    ),
    "diffusers model": ({"config.json": UNET}, {}, "diffusers UNet2DConditionModel, whole"),
    "diffusers LoRA": (
        {"lora.safetensors": None},
        {"library": "diffusers", "tags": ["lora"]},
        "a LoRA for diffusers, without the configuration of a model",
    ),
    "open_clip": (
        {"open_clip_config.json": {"model_cfg": {}}, **CONFIG},
        {"library": "open_clip"},
        "open_clip org/model, whole",
    ),
    "PEFT adapter": (
        LORA_FILES,
        {"library": "peft", "base": BASE},
        "class AcornModel with the adapter adapter_config.json with peft, whole",
    ),
    "PEFT adapter, base not reachable": (
        LORA_FILES,
        {"library": "peft"},
        "PEFT adapter: the configuration of its base model org/acorn is not available",
    ),
    "PEFT adapter, base unknown": (
        LORA_FILES,
        {"library": "peft", "base": {"config.json": {"model_type": "oak"}}},
        "PEFT adapter of org/acorn: transformers 9.9.9 has no model type oak",
    ),
    "GPTQ": (config(quantization_config={"quant_method": "gptq"}), {}, f"{WHOLE}, gptq"),
    "GPTQ, older": (CONFIG | {"quantize_config.json": {"bits": 4}}, {}, f"{WHOLE}, gptq"),
    "another format": (
        {"config.json": ACORN, "model-Q4.gguf": None},
        {"library": "transformers"},
        "not PyTorch: it has only GGUF weights",
    ),
    "other library": (
        {"pytorch_model.bin": None},
        {"library": "spacy"},
        f"a model of spaCy: {BUILT}",
    ),
    "unknown library": (
        {"pytorch_model.bin": None},
        {"library": "newlib"},
        f"a model of newlib: {BUILT}",
    ),
    "other library, by its files": (
        {"hyperparams.yaml": None, "embedding_model.ckpt": None},
        {},
        f"a model of SpeechBrain: {BUILT}",
    ),
    "other library on a class of Transformers": (
        CONFIG,
        {"library": "setfit"},
        "class AcornModel, transformers",
    ),
    "original files": (
        {"params.json": LLAMA, "consolidated.00.pth": None},
        {},
        "transformers 9.9.9 has no model type llama",
    ),
    "original files of an unknown form": (
        {"params.json": {"d_model": 8}, "consolidated.00.pth": None},
        {},
        "original weights (consolidated.00.pth) without a configuration of a known form",
    ),
    "gated without token": (CONFIG, {"problem": GATED, "gated": True}, GATED),
    "gated with token": (CONFIG, {"gated": True}, WHOLE),
    "remote code": (
        {"config.json": OAK},
        {"library": "transformers"},
        "remote code: its repository and revision are not in remote_code.toml",
    ),
    "remote code, listed": ({"config.json": OAK}, {"trusted": True}, "class OakModel, whole"),
    "config without anything": (
        {"config.json": SIZES},
        {},
        "its config.json names no model_type",
    ),
    "a type in the name alone": (
        {"config.json": SIZES},
        {"name": "org/bio-acorn-base"},
        "org/bio-acorn-base class AcornForCausalLM, whole",
    ),
    "the name alone": (
        {"config.json": {"d_model": 8}},
        {"name": "org/acorn"},
        "org/acorn its config.json names no model_type",
    ),
    "invalid config.json": (
        {"config.json": '{"model_type": '},
        {},
        "invalid configuration: config.json: not JSON: Expecting value: line 1 column 16 (char 15)",
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
    files, more, expected = KINDS[name]
    specs = read(files, **more)
    assert "; ".join(map(said, specs)) == expected
    assert {(spec.repository, spec.downloads) for spec in specs} == {(more.get("name", NAME), 7)}
    # A reason survives the plan, whatever is known of the class.
    skipped = [spec for spec in specs if spec.skip_reason is not None]
    if skipped:
        results = plan(skipped, [Target()], Options(), [factories.environment()]).skipped
        assert {r.status for r in results} == {Status.SKIPPED}
        assert {r.detail for r in results} == {spec.skip_reason for spec in skipped}


def test_original_files_are_built_as_the_class_of_transformers(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "converted", lambda params: {**ACORN, **params})
    assert list(map(said, read(KINDS["original files"][0]))) == ["class AcornModel, original"]


@pytest.mark.parametrize(
    ("library", "tags", "expected"),
    [
        ("diffusers", ["lora", "base_model:org/base"], "org/base"),
        ("diffusers", ["base_model:org/other", "base_model:adapter:org/base"], "org/base"),
        # Weights that were derived from another model have their own configuration.
        ("diffusers", ["base_model:finetune:org/base"], None),
        ("peft", ["base_model:adapter:org/base"], None),
    ],
)
def test_the_base_of_an_adapter_is_that_of_its_tags(
    library: str, tags: list[str], expected: str | None
) -> None:
    assert pull.base_pipeline(library, tags) == expected


def test_builds_of_libraries_are_known_by_the_content_of_their_configuration(read: Read) -> None:
    digests = []
    for size in (8, 8, 16):
        (spec,) = read({**chain(), "1_Pooling/config.json": {"dimension": size}})
        assert isinstance(spec.build, LibraryBuild)
        assert (Path(spec.build.configuration or "") / "modules.json").is_file()
        digests.append(spec.build.configuration_sha256)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"quant_method": "awq", "bits": 4}, Quantization.AWQ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Quantization.BITSANDBYTES_4BIT),
        ({"load_in_8bit": True}, Quantization.BITSANDBYTES_8BIT),
        ({"quant_method": "fp8"}, Quantization.FP8),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Quantization.FP8),
        ({"quant_method": "compressed-tensors"}, Quantization.COMPRESSED_TENSORS),
        ({"quant_method": "torchao"}, Quantization.TORCHAO),
        ({"quant_method": "hqq"}, Quantization.OTHER),
        (None, None),
    ],
)
def test_the_quantisation_that_a_configuration_says(
    stated: dict[str, Any] | None, expected: Quantization | None
) -> None:
    assert quantization({"quantization_config": stated}) == expected
    assert quantization({}, {"zero_point": True}) is Quantization.AWQ


def test_the_quantisation_of_a_checkpoint_is_not_in_a_class_that_is_built_without_weights(
    read: Read,
) -> None:
    assert [read(KINDS[name][0])[0].is_dequantized for name in ("GPTQ", "transformers")] == [
        True,
        False,
    ]
    assert read(CONFIG)[0].part is Part.WHOLE


LLAMA_2_7B: dict[str, Any] = {
    "dim": 4096,
    "multiple_of": 256,
    "n_heads": 32,
    "n_layers": 32,
    "norm_eps": 1e-05,
}
LLAMA_3_8B: dict[str, Any] = LLAMA_2_7B | {
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "multiple_of": 1024,
}
LLAMA_3_8B |= {"ffn_dim_multiplier": 1.3, "rope_theta": 500000.0}
MISTRAL_7B: dict[str, Any] = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
}
MISTRAL_7B |= {"n_kv_heads": 8, "norm_eps": 1e-05, "vocab_size": 32000}
MIXTRAL = {**MISTRAL_7B, "moe": {"num_experts_per_tok": 2, "num_experts": 8}}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (LLAMA_2_7B | {"vocab_size": -1}, ("llama", 11008, 32, 32000)),
        (LLAMA_3_8B, ("llama", 14336, 8, 128256)),
        (MISTRAL_7B, ("mistral", 14336, 8, 32000)),
        (MIXTRAL, ("mixtral", 14336, 8, 32000)),
        # Other forms are not guessed.
        ({}, None),
        ({"dim": "wide", "n_layers": 2, "n_heads": 2, "norm_eps": 1e-5}, None),
        ({**MISTRAL_7B, "vision_encoder": {}}, None),
        ({**MISTRAL_7B, "vocab_size": "large"}, None),
    ],
)
def test_sizes_are_those_of_the_published_configurations(
    params: dict[str, Any], expected: tuple[Any, ...] | None
) -> None:
    sizes = converted(params)
    keys = ("model_type", "intermediate_size", "num_key_value_heads", "vocab_size")
    assert (sizes and tuple(sizes[key] for key in keys)) == expected
    assert sizes is None or (sizes["hidden_size"], sizes["num_hidden_layers"]) == (4096, 32)


MAMBA_130M = {"d_model": 768, "n_layer": 24, "vocab_size": 50277, "ssm_cfg": {}}


def test_a_configuration_of_mamba_ssm_has_the_sizes_of_the_class() -> None:
    sizes = {"hidden_size": 768, "num_hidden_layers": 24}
    # The embeddings have a multiple of eight rows.
    sizes["vocab_size"] = 50280
    names = {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    assert converted_mamba(MAMBA_130M) == {**names, **sizes}
    for other in ({"ssm_cfg": {"layer": "Mamba2"}}, {"model_type": "mamba"}, {"d_model": "768"}):
        assert converted_mamba(MAMBA_130M | other) is None
    assert converted_mamba({}) is None
