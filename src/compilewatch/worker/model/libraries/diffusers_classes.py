"""What the constructors of single classes of diffusers need besides their defaults."""

from __future__ import annotations

from typing import Any

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    # Sizes with which each class can be built. They resemble those of published models, but were
    # written by hand and not compared with a repository.
    "AutoencoderKLHunyuanImage": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 64,
        "block_out_channels": (128, 256, 512, 512, 1024, 1024),
        "layers_per_block": 2,
        "spatial_compression_ratio": 32,
        "sample_size": 384,
    },
    # 16 heads of 128 are the width that its default states; its 32 do not fit.
    "CosmosControlNetModel": {"num_attention_heads": 16},
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
    # Tables of which atoms a residue has, and which residues a token may become: all of them.
    "RFD4ProteinaAutoencoder": {
        "atom37_mask": [[True] * 37] * 147,
        "allowed_residue_types": [[True] * 147] * 7,
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
    "EasyAnimateTransformer3DModel": {"in_channels": 16, "out_channels": 16, "patch_size": 2},
    "HiDreamImageTransformer2DModel": {
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 16,
        "caption_channels": [4096, 4096],
        "axes_dims_rope": (64, 32, 32),
        "llama_layers": [*range(32), *[31] * 16],
    },
    "HunyuanVideoFramepackTransformer3DModel": {
        "has_image_proj": True,
        "has_clean_x_embedder": True,
    },
    "OmniGenTransformer2DModel": {
        "rope_scaling": {"type": "su", "long_factor": [1.0] * 48, "short_factor": [1.0] * 48}
    },
    "UNet1DModel": {"extra_in_channels": 64},
    "LuminaNextDiT2DModel": {"num_layers": 24, "num_attention_heads": 32, "num_kv_heads": 32},
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

REDUCED: dict[str, dict[str, Any]] = {
    "BriaFibo2Transformer2DModel": {"injection_layer_ids": (0, 1)},
    "HiDreamImageTransformer2DModel": {"llama_layers": [0, 1, 2, 3]},
    "Kandinsky3UNet": {"layers_per_block": 3},
    "WanAnimateTransformer3DModel": {"inject_face_latents_blocks": 1},
    "WanVACETransformer3DModel": {"vace_layers": [0, 1]},
    "ZImageControlNetModel": {"control_layers_places": [0, 1]},
}
"""Class -> arguments that depend on the number of layers, for the reduced one."""

PREPARED: dict[str, str] = {"AutoencoderKLAllegro": "enable_tiling"}
"""Class -> the method to call first, without which it cannot run."""

SHARED: dict[str, str] = {"ZImageControlNetModel": "ZImageTransformer2DModel"}
"""Control networks that use parts of a transformer, which `from_transformer` gives them."""

CONTAINERS: dict[str, tuple[str, str, int]] = {
    "FluxMultiControlNetModel": ("FluxControlNetModel", "controlnets", 2),
    "HunyuanDiT2DMultiControlNetModel": ("HunyuanDiT2DControlNetModel", "controlnets", 2),
    "MultiAdapter": ("T2IAdapter", "adapters", 2),
    "MultiControlNetModel": ("ControlNetModel", "controlnets", 2),
    "QwenImageMultiControlNetModel": ("QwenImageControlNetModel", "controlnets", 1),
    "SD3MultiControlNetModel": ("SD3ControlNetModel", "controlnets", 2),
}
"""Classes that hold several models of another class: that class, the argument, and how many."""
