"""What the constructors of single classes of diffusers need besides their defaults."""

from __future__ import annotations

from typing import Any

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    # The size of the first published model of each class.
    "AutoencoderKLHunyuanImage": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 64,
        "block_out_channels": (128, 256, 512, 512, 1024, 1024),
        "layers_per_block": 2,
        "spatial_compression_ratio": 32,
        "sample_size": 384,
    },
    "HunyuanDiT2DControlNetModel": {"in_channels": 4, "patch_size": 2, "sample_size": 128},
    "HunyuanDiT2DModel": {
        "in_channels": 4,
        "patch_size": 2,
        "sample_size": 128,
        "hidden_size": 1408,
        "num_layers": 40,
        "mlp_ratio": 4.3637,
    },
    "ControlNetUnionModel": {
        "cross_attention_dim": 2048,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "block_out_channels": (320, 640, 1280),
        "attention_head_dim": (5, 10, 20),
        "transformer_layers_per_block": (1, 2, 10),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
    "ZImageControlNetModel": {
        "control_layers_places": [0, 5, 10, 15, 20, 25],
        "control_refiner_layers_places": [],
        "control_in_dim": 16,
    },
    "LatteTransformer3DModel": {
        "attention_head_dim": 72,
        "attention_bias": True,
        "in_channels": 4,
        "out_channels": 8,
        "num_layers": 28,
        "patch_size": 2,
        "cross_attention_dim": 1152,
        "caption_channels": 4096,
        "activation_fn": "gelu-approximate",
        "norm_type": "ada_norm_single",
        "norm_elementwise_affine": False,
        "num_embeds_ada_norm": 1000,
    },
    "LuminaNextDiT2DModel": {"num_layers": 24, "num_attention_heads": 32, "num_kv_heads": 8},
    "Transformer2DModel": {"in_channels": 320, "attention_head_dim": 40, "num_attention_heads": 8},
    "DreamLiteTransformer2DModel": {
        "in_channels": 320,
        "attention_head_dim": 40,
        "num_attention_heads": 8,
    },
    "TransformerTemporalModel": {
        "in_channels": 320,
        "attention_head_dim": 40,
        "num_attention_heads": 8,
    },
}

REDUCED: dict[str, dict[str, Any]] = {}
"""Class -> arguments that depend on the number of layers, for the reduced one."""

CONTAINERS: dict[str, tuple[str, str, int]] = {
    "FluxMultiControlNetModel": ("FluxControlNetModel", "controlnets", 2),
    "HunyuanDiT2DMultiControlNetModel": ("HunyuanDiT2DControlNetModel", "controlnets", 2),
    "MultiAdapter": ("T2IAdapter", "adapters", 2),
    "MultiControlNetModel": ("ControlNetModel", "controlnets", 2),
    "QwenImageMultiControlNetModel": ("QwenImageControlNetModel", "controlnets", 1),
    "SD3MultiControlNetModel": ("SD3ControlNetModel", "controlnets", 2),
}
"""Classes that hold several models of another class: that class, the argument, and how many."""
