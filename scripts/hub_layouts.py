"""What `scripts.local_repositories` assumes of repositories, by task and by words in a name."""

from __future__ import annotations

from typing import Any

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


def clip_text(name: str) -> Files:
    return {f"{name}/config.json": {"model_type": "clip_text_model"}}


def diffusers(**components: str) -> Files:
    return {f"{name}/config.json": {"_class_name": kind} for name, kind in components.items()}


T5: Files = {"text_encoder_2/config.json": {"model_type": "t5"}}
CLASSES = {
    "clip_text_model": "CLIPTextModel",
    "siglip_vision_model": "SiglipVisionModel",
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
}
PIPELINES: dict[str, Files] = {
    r"redux": {
        "image_encoder/config.json": {"model_type": "siglip_vision_model"},
        "image_embedder/config.json": {"_class_name": "ReduxImageEncoder"},
    },
    r"flux": {
        **diffusers(transformer="FluxTransformer2DModel", vae="AutoencoderKL"),
        **clip_text("text_encoder"),
        **T5,
    },
    r"diffusion-3": {
        **diffusers(transformer="SD3Transformer2DModel", vae="AutoencoderKL"),
        **clip_text("text_encoder"),
    },
    r"video-diffusion|depthcrafter": diffusers(
        unet="UNetSpatioTemporalConditionModel", vae="AutoencoderKLTemporalDecoder"
    ),
    r"wan2": {
        **diffusers(transformer="WanTransformer3DModel", vae="AutoencoderKLWan"),
        "text_encoder/config.json": {"model_type": "umt5"},
    },
    r"ltx": {
        **diffusers(transformer="LTXVideoTransformer3DModel", vae="AutoencoderKLLTXVideo"),
        "text_encoder/config.json": {"model_type": "t5"},
    },
    r"hunyuandit": {
        **diffusers(transformer="HunyuanDiT2DModel", vae="AutoencoderKL"),
        "text_encoder_2/config.json": {"model_type": "t5"},
    },
    r"xl|playground": {
        **diffusers(unet="UNet2DConditionModel", vae="AutoencoderKL"),
        **clip_text("text_encoder"),
        **clip_text("text_encoder_2"),
    },
    r"": {
        **diffusers(unet="UNet2DConditionModel", vae="AutoencoderKL"),
        **clip_text("text_encoder"),
    },
}
"""Pattern of a name -> the components of such a pipeline; the first that matches counts."""

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
