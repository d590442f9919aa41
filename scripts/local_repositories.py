"""Makes repositories like those of a list of the Hub, on this machine and without the network.

    python -m scripts.local_repositories LIST.csv --top 1000 --output DIR
    COMPILEWATCH_PULLED_DIR=DIR compilewatch sweep --source hub --top 100

LIST.csv has a header and the columns `model_id`, `downloads`, `task`, `library`, `model_type`,
`license` and `custom_code`, as exports of the Hub's list have. DIR gets what `compilewatch pull`
would write: a list and configuration files, no weights and no code.

What is made is not what the Hub has. The list determines the library, the model type and the task,
from which the class follows where Transformers has one for both. All else is assumed from published
layouts and from words in the name (`-GGUF`, `-AWQ`, `sdxl`, `vae`): which files there are, the
components of a pipeline, the quantisation, and the sizes, which are the defaults of each class or,
where it has none, those of `data/overrides`. Only the chains of `data/sentence-transformers`
are those of the repositories with their names. Whether a repository is gated is not in the list.
The printed table says how many repositories of each kind resolve to a model that can be evaluated;
it says nothing of verdicts.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch.data import SENTENCE_TRANSFORMERS, read_overrides
from compilewatch.records import LibraryBuild, ModelSpec, Part
from compilewatch.sources.hub.formats import kept_files
from compilewatch.sources.hub.pull import fetch_configurations
from compilewatch.sources.hub.pulled import (
    PulledList,
    PulledModel,
    PulledQuery,
    write_pulled,
)
from compilewatch.sources.hub.repositories import BASE, HubSource
from compilewatch.sources.transformers import ScannedLibrary, read_library

COMMIT = "0" * 40

Files = dict[str, Any]
"""Name of a file -> its content, None for one that no pull would fetch."""

WEIGHTS: Files = {"model.safetensors": None}

HEADS = {
    "text-generation": ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM"),
    "text2text-generation": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "translation": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "summarization": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "fill-mask": ("MASKED_LM",),
    "text-classification": ("SEQUENCE_CLASSIFICATION",),
    "zero-shot-classification": ("SEQUENCE_CLASSIFICATION",),
    "text-ranking": ("SEQUENCE_CLASSIFICATION",),
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "question-answering": ("QUESTION_ANSWERING",),
    "table-question-answering": ("TABLE_QUESTION_ANSWERING",),
    "document-question-answering": ("DOCUMENT_QUESTION_ANSWERING", "QUESTION_ANSWERING"),
    "image-classification": ("IMAGE_CLASSIFICATION",),
    "video-classification": ("VIDEO_CLASSIFICATION",),
    "object-detection": ("OBJECT_DETECTION",),
    "zero-shot-object-detection": ("ZERO_SHOT_OBJECT_DETECTION",),
    "zero-shot-image-classification": ("ZERO_SHOT_IMAGE_CLASSIFICATION",),
    "image-segmentation": ("UNIVERSAL_SEGMENTATION", "SEMANTIC_SEGMENTATION", "IMAGE_SEGMENTATION"),
    "depth-estimation": ("DEPTH_ESTIMATION",),
    "keypoint-detection": ("KEYPOINT_DETECTION", "POSE_ESTIMATION"),
    "mask-generation": ("MASK_GENERATION",),
    "image-text-to-text": ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM"),
    "image-to-text": ("IMAGE_TEXT_TO_TEXT",),
    "visual-question-answering": ("VISUAL_QUESTION_ANSWERING",),
    "automatic-speech-recognition": ("CTC", "SPEECH_SEQ_2_SEQ"),
    "audio-classification": ("AUDIO_CLASSIFICATION",),
    "text-to-audio": ("TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM"),
    "text-to-speech": ("TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM"),
}
"""Task of the Hub -> the auto classes of Transformers that its pipelines use, by preference."""

CLASSES_BY_NAME: dict[str, dict[str, Any]] = {
    r"chronos-t5": {"architectures": ["T5ForConditionalGeneration"]},
    r"chronos-bolt": {
        "architectures": ["ChronosBoltModelForForecasting"],
        "decoder_start_token_id": 0,
        "reg_token_id": 1,
        "chronos_config": {
            "context_length": 2048,
            "input_patch_size": 16,
            "input_patch_stride": 16,
            "prediction_length": 64,
            "quantiles": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
            "use_reg_token": True,
        },
    },
}
"""Pattern of a name -> what such configurations say. The second is a class of another package."""

OLD_SIZES = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "vocab_size": 30522,
}
"""A configuration of BERT of before `model_type` was stored."""

QUANTIZED = {
    r"gptq": {"quant_method": "gptq", "bits": 4},
    r"awq": {"quant_method": "awq", "bits": 4},
    r"fp8": {"quant_method": "compressed-tensors"},
    r"bnb-4bit|nf4|[-_]4bit": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    r"[-_]8bit": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}
"""Pattern of a name -> the `quantization_config` that such repositories have."""

FOREIGN: dict[str, tuple[str | None, Files]] = {
    r"gguf": ("gguf", {"model-Q4_K_M.gguf": None}),
    r"mlx": ("mlx", WEIGHTS),
    r"-mlc\b": ("mlc-llm", {"params_shard_0.bin": None}),
    r"^xenova/|onnx": ("transformers.js", {"onnx/model.onnx": None}),
    r"faster-(distil-)?whisper": ("ctranslate2", {"model.bin": None, "vocabulary.txt": None}),
    r"coreml": (None, {"model.mlmodelc/coremldata.bin": None}),
    r"^speechbrain/": ("speechbrain", {"hyperparams.yaml": None, "embedding_model.ckpt": None}),
    r"^flair/": ("flair", {"pytorch_model.bin": None}),
    r"^nvidia/(speaker|parakeet)": ("nemo", {"model.nemo": None}),
    r"fasttext|openlid": ("fasttext", {"model.bin": None}),
    r"gliner": ("gliner", {"pytorch_model.bin": None}),
    r"^coqui/": ("coqui", {"model.pth": None}),
    r"yolo|adetailer": ("ultralytics", {"model.pt": None}),
    r"pyannote|diarization|segmentation-3": ("pyannote-audio", {"config.yaml": None}),
}
"""Pattern of a name -> the library and the files of a repository that is not of the libraries."""


CLASSES = {
    "clip_text_model": "CLIPTextModel",
    "siglip_vision_model": "SiglipVisionModel",
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
}
"""Model types of Transformers -> the classes of pipelines' components."""

PIPELINES: dict[str, dict[str, str]] = {
    r"redux": {"image_encoder": "siglip_vision_model", "image_embedder": "ReduxImageEncoder"},
    r"flux": {
        "transformer": "FluxTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "clip_text_model",
        "text_encoder_2": "t5",
    },
    r"diffusion-3": {
        "transformer": "SD3Transformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "clip_text_model",
    },
    r"video-diffusion|depthcrafter": {
        "unet": "UNetSpatioTemporalConditionModel",
        "vae": "AutoencoderKLTemporalDecoder",
    },
    r"wan2": {
        "transformer": "WanTransformer3DModel",
        "vae": "AutoencoderKLWan",
        "text_encoder": "umt5",
    },
    r"ltx": {
        "transformer": "LTXVideoTransformer3DModel",
        "vae": "AutoencoderKLLTXVideo",
        "text_encoder": "t5",
    },
    r"hunyuandit": {
        "transformer": "HunyuanDiT2DModel",
        "vae": "AutoencoderKL",
        "text_encoder_2": "t5",
    },
    r"xl|playground": {
        "unet": "UNet2DConditionModel",
        "vae": "AutoencoderKL",
        "text_encoder": "clip_text_model",
        "text_encoder_2": "clip_text_model",
    },
    r"": {
        "unet": "UNet2DConditionModel",
        "vae": "AutoencoderKL",
        "text_encoder": "clip_text_model",
    },
}
"""Pattern of a name -> the components of such a pipeline, each with its class of diffusers or its
model type of Transformers; the first that matches counts."""

ADAPTERS = r"lora|hyper-sd|lightning|ip-adapter"
BASES = {
    r"lcm-lora-sdv1-5": "stable-diffusion-v1-5",
    r"Hyper-SD|flux-\w+Lora": "flux.1-dev",
}
"""Pattern of an adapter's name -> the pipeline that its tag `base_model` is assumed to name."""

MAMBA = {"d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}}
"""The configuration of the package mamba-ssm, with the sizes of its model of 2.8 billion."""

OPEN_CLIP = {
    "model_cfg": {
        "embed_dim": 512,
        "vision_cfg": {"image_size": 224, "layers": 12, "width": 768, "patch_size": 32},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 512,
            "heads": 8,
            "layers": 12,
        },
    },
    "preprocess_cfg": {},
}

Row = Mapping[str, str]


def files_of(row: Row, library: ScannedLibrary) -> tuple[str | None, Files]:
    """Return the library and the files of a repository like the one in a row of the list."""
    name = row["model_id"].lower()
    named = row["library"] or None
    config = configuration(row, library)
    for pattern, (other, files) in FOREIGN.items():
        if re.search(pattern, name) and named not in ("timm", "open_clip", "diffusers"):
            return other or named, {**({"config.json": config} if config else {}), **files}
    if named == "gguf":
        return named, {"model-Q4_K_M.gguf": None}
    if named == "pyannote-audio":
        return named, {"config.yaml": None}
    if named == "diffusers":
        return named, _diffusers(name)
    if named == "timm":
        architecture = name.partition("/")[2].partition(".")[0]
        if not name.startswith("timm/"):
            architecture = "vit_base_patch16_224"
        return named, {"config.json": {"architecture": architecture}, **WEIGHTS}
    if named == "open_clip":
        return named, {"open_clip_config.json": OPEN_CLIP, **WEIGHTS}
    if named == "sentence-transformers" and row["task"] != "text-classification":
        return named, _published(row["model_id"]) or _chain(config)
    return named, {**({"config.json": config} if config else {}), **WEIGHTS}


def configuration(row: Row, library: ScannedLibrary) -> dict[str, Any] | None:
    """Return a `config.json` with the class that model type and task name; None without either."""
    kind, own = row["model_type"], row["custom_code"] == "yes"
    if not kind and not own:
        # Older repositories of BERT have a configuration without model type, others have none.
        if "mamba-2.8b" in row["model_id"]:
            return MAMBA
        old = "bert" in row["model_id"].partition("/")[2].lower()
        return (OLD_SIZES if old else {"dim": 8}) if row["library"] == "transformers" else None
    config: dict[str, Any] = {"model_type": kind or "of_its_own"}
    if own:
        config["auto_map"] = {"AutoModel": "modeling.OwnModel"}
    heads = [f"MODEL_FOR_{head}_MAPPING_NAMES" for head in HEADS.get(row["task"], ())]
    # Where no class is of the task, that of the base model is taken, or the only one of the type.
    if kind in library.mappings["MODEL_MAPPING_NAMES"]:
        heads.append("")
    for mapping in heads or library.mappings:
        if found := library.mappings.get(mapping, {}).get(kind):
            config["architectures"] = [found[0]]
            break
    for pattern, values in CLASSES_BY_NAME.items():
        if re.search(pattern, row["model_id"]):
            config |= values
    config |= _reviewed_defaults(kind)
    for pattern, quantized in QUANTIZED.items():
        if re.search(pattern, row["model_id"], re.IGNORECASE):
            config["quantization_config"] = quantized
            break
    return config


@cache
def _reviewed_defaults(kind: str) -> dict[str, Any]:
    """The values of the reviewed overrides for fields of a model type that have no usable default.

    `vocab_size` of ESM is one; a published configuration has it.
    """
    found: dict[str, Any] = {}
    for override in read_overrides(None):
        if kind in override.get("model_types", ()) and not override.get("classes"):
            found |= override.get("defaults", {})
    return found


def _published(name: str) -> Files:
    """The files of a published chain that is among the reviewed inputs; empty for another one."""
    folder = SENTENCE_TRANSFORMERS / name.partition("/")[2]
    if not (folder / "modules.json").is_file():
        return {}
    paths = sorted(folder.rglob("*.json"))
    files = {p.relative_to(folder).as_posix(): msgspec.json.decode(p.read_bytes()) for p in paths}
    return files | WEIGHTS


def _chain(config: dict[str, Any] | None) -> Files:
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] if config else [("", "StaticEmbedding")]
    modules = [{"path": p, "type": f"sentence_transformers.models.{k}"} for p, k in kinds]
    pooling = {"word_embedding_dimension": 768, "pooling_mode_mean_tokens": True}
    chain = {"config.json": config, "1_Pooling/config.json": pooling} if config else {}
    return {"modules.json": modules, **chain, **WEIGHTS}


def _diffusers(name: str) -> Files:
    weights: Files = {"diffusion_pytorch_model.safetensors": None}
    if re.search(ADAPTERS, name):
        return {"pytorch_lora_weights.safetensors": None}
    if "vae" in name and "novae" not in name:
        return {"config.json": {"_class_name": "AutoencoderKL"}, **weights}
    if "controlnet" in name:
        return {"config.json": {"_class_name": "ControlNetModel"}, **weights}
    return {**_pipeline(name), "unet/diffusion_pytorch_model.safetensors": None}


def _pipeline(name: str) -> Files:
    parts = next(parts for pattern, parts in PIPELINES.items() if re.search(pattern, name))
    index = {
        part: ["transformers", CLASSES[kind]] if kind in CLASSES else ["diffusers", kind]
        for part, kind in parts.items()
    }
    configurations = {
        f"{part}/config.json": {"model_type" if kind in CLASSES else "_class_name": kind}
        for part, kind in parts.items()
    }
    return {"model_index.json": index, **configurations}


def _fetched(files: Files, folder: Path) -> str | None:
    """Write what a pull would fetch of these files; return the name of the main configuration."""
    texts = {
        name: msgspec.json.encode(content).decode()
        for name, content in files.items()
        if content is not None
    }
    return fetch_configurations(files, texts.__getitem__, folder)


def make(rows: Iterable[Row], output: Path, top: int) -> Path:
    """Write the list and the configuration files; return the path of the list."""
    library = read_library()
    models = []
    for row in rows:
        named, files = files_of(row, library)
        where = f"configs/{row['model_id'].replace('/', '--')}/{COMMIT[:12]}"
        main = _fetched(files, output / where)
        base = next((of for of, name in BASES.items() if re.search(of, row["model_id"])), None)
        if main is None and named == "diffusers" and base is not None:
            main = f"{BASE}/{_fetched(_pipeline(BASES[base]), output / where / BASE)}"
        models.append(
            PulledModel(
                repository=row["model_id"],
                revision=COMMIT,
                config=f"{where}/{main}" if main else None,
                model_type=row["model_type"] or None,
                downloads=int(row["downloads"]),
                task=row["task"] or None,
                library=named,
                license=row["license"] or None,
                files=kept_files(files),
            )
        )
    path = output / "models.toml"
    made = PulledList(
        endpoint="made locally, not fetched from the Hub",
        pulled_at="never",
        query=PulledQuery(top=top),
        model=models,
    )
    write_pulled(path, made)
    return path


NOT_PYTORCH = "not PyTorch"
NO_MODEL = "no model"
OTHER_LIBRARY = "a model of "
REMOTE_CODE = "remote code"


def kind_of(parts: list[ModelSpec]) -> str:
    """Return how a repository resolves, as a line of the table counts it."""
    resolved = [spec for spec in parts if spec.skip_reason is None]
    if not resolved:
        reason = parts[0].skip_reason or ""
        if reason.startswith("a model of fastText"):
            return f"{NOT_PYTORCH}: fastText"
        if reason.startswith(OTHER_LIBRARY):
            return reason.partition(":")[0]
        return re.sub(r"\(.*?\)|(?<=model type ).*|(?<=no class ).*", "…", reason)
    spec = resolved[0]
    libraries = sorted(map(_library_of, resolved), key=_rank)
    part = "pipeline" if spec.part is Part.COMPONENT else str(spec.part)
    quantized = ", quantised" if any(each.quantization for each in resolved) else ""
    return f"evaluated: {libraries[0]}, {part}{quantized}"


def _rank(library: str) -> tuple[int, str]:
    """A component of another library than these two says whose the pipeline is."""
    return {"diffusers": 1, "transformers": 2}.get(library, 0), library


def _library_of(spec: ModelSpec) -> str:
    return spec.build.library if isinstance(spec.build, LibraryBuild) else "transformers"


def table(specs: Iterable[ModelSpec]) -> str:
    """Return the counts by kind, and the share of the PyTorch repositories that resolve."""
    parts: dict[str, list[ModelSpec]] = {}
    for spec in specs:
        parts.setdefault(spec.repository or spec.name, []).append(spec)
    counts = Counter(kind_of(found) for found in parts.values())

    def count(*prefixes: str) -> int:
        return sum(n for kind, n in counts.items() if kind.startswith(prefixes))

    evaluated = count("evaluated")
    pytorch = counts.total() - count(NOT_PYTORCH, NO_MODEL)
    lines = [f"{n:6,}  {kind}" for kind, n in counts.most_common()]
    lines.append("")
    for total, which in (
        (pytorch, "all PyTorch repositories"),
        (pytorch - count(REMOTE_CODE), "those without remote code"),
        (pytorch - count(REMOTE_CODE, OTHER_LIBRARY), "those of the libraries that are built"),
    ):
        share = f" ({evaluated / total:.1%})" if total else ""
        lines.append(f"resolved: {evaluated:,} of {total:,}{share}, of {which}")
    return "\n".join(lines)


@click.command()
@click.argument("listing", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--top", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path))
def command(listing: Path, top: int, output: Path) -> None:
    """Make local repositories like those of LISTING and print what they resolve to."""
    with listing.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: -int(row["downloads"]))[:top]
    path = make(rows, output, top)
    click.echo(f"{len(rows):,} repositories made locally, none fetched: {path}\n")
    click.echo(table(HubSource(path=path).models()))


if __name__ == "__main__":
    command()
