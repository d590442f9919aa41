"""Inputs of single classes of diffusers that no rule derives: what their documentation says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from compilewatch.worker.model.libraries.diffusers_packed import (
    cosmos_3_omni,
    minimax_h3,
    rfd4_autoencoder,
    rfd4_transformer,
    wan_animate_2,
    z_image,
)

if TYPE_CHECKING:
    from compilewatch.worker.model.libraries.diffusers_inputs import Facts

BATCH = 2
TOKENS = 16
SIDE = 16
FRAMES = 3

Special = Callable[["Facts"], dict[str, Any]]


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(BATCH, *shape)


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(BATCH, *shape)


def _integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, (BATCH, *shape))


def _video(channels: int, frames: int = FRAMES, side: int = SIDE) -> torch.Tensor:
    return _normal(channels, frames, side, side)


def _positions(count: int, axes: int = 3) -> torch.Tensor:
    return torch.arange(count)[:, None].repeat(1, axes)


def _hunyuan_dit(facts: Facts) -> dict[str, Any]:
    """The text of two encoders, the size of the image, and rotary embeddings of each patch."""
    text, long = facts.get("text_len"), facts.get("text_len_t5")
    width, patches = facts.get("attention_head_dim"), (SIDE // 2) ** 2
    return {
        "timestep": torch.full((BATCH,), 500.0),
        "encoder_hidden_states": _normal(text, facts.get("cross_attention_dim")),
        "text_embedding_mask": _ones(text),
        "encoder_hidden_states_t5": _normal(long, facts.get("cross_attention_dim_t5")),
        "text_embedding_mask_t5": _ones(long),
        "image_meta_size": _ones(6) * 1024,
        "style": torch.zeros(BATCH, dtype=torch.long),
        "image_rotary_emb": (torch.ones(patches, width), torch.zeros(patches, width)),
        "controlnet_cond": _normal(facts.channels, SIDE, SIDE) if facts.takes_control else None,
    }


def _lumina_next(facts: Facts) -> dict[str, Any]:
    from diffusers.models.embeddings import get_2d_rotary_pos_embed_lumina

    width = facts.get("hidden_size") // facts.get("num_attention_heads")
    return {
        "timestep": torch.full((BATCH,), 0.5),
        "encoder_mask": _ones(TOKENS),
        "cross_attention_kwargs": {},
        "image_rotary_emb": get_2d_rotary_pos_embed_lumina(width, 384, 384),
    }


def _packed_video(facts: Facts) -> dict[str, Any]:
    """Patches of a video in a row, with the numbers of its frames, rows and columns."""
    side = SIDE // 2
    return {
        "hidden_states": _normal(FRAMES * side * side, facts.channels),
        "num_frames": FRAMES,
        "height": side,
        "width": side,
    }


def _ltx2(facts: Facts) -> dict[str, Any]:
    tokens = FRAMES * (SIDE // 2) ** 2
    return _packed_video(facts) | {
        "audio_hidden_states": _normal(TOKENS, facts.get("audio_in_channels")),
        "audio_encoder_hidden_states": _normal(TOKENS, facts.get("caption_channels")),
        "timestep": torch.full((BATCH, tokens), 500.0),
        "audio_timestep": torch.full((BATCH,), 500.0),
        "sigma": torch.full((BATCH,), 500.0),
        "audio_sigma": torch.full((BATCH,), 500.0),
        "audio_num_frames": TOKENS,
    }


def _omnigen(facts: Facts) -> dict[str, Any]:
    total = TOKENS + 1 + (SIDE // 2) ** 2
    return {
        "input_ids": _integers(facts.get("vocab_size"), TOKENS),
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": torch.ones(BATCH, total, total),
        "position_ids": torch.arange(total).repeat(BATCH, 1),
    }


def _qwen_image_21(facts: Facts) -> dict[str, Any]:
    """Four tokens of the image stand for one of the joint sequence."""
    slots = SIDE * SIDE // 4
    return {
        "hidden_states": _normal(SIDE * SIDE, facts.channels),
        "img_shapes": [[(1, SIDE, SIDE)]] * BATCH,
        "img_mask": torch.tensor([[False] * TOKENS + [True] * slots] * BATCH),
    }


def _kandinsky_5(facts: Facts) -> dict[str, Any]:
    half = SIDE // 2
    return {
        "hidden_states": _normal(FRAMES, SIDE, SIDE, facts.get("in_visual_dim")),
        "pooled_projections": _normal(facts.get("in_text_dim2")),
        "visual_rope_pos": (torch.arange(FRAMES), torch.arange(half), torch.arange(half)),
        "text_rope_pos": torch.arange(TOKENS),
    }


def _framepack(facts: Facts) -> dict[str, Any]:
    """The frames to make, and those before them at three resolutions."""
    return {
        "image_embeds": _normal(8, facts.get("image_proj_dim")),
        "encoder_attention_mask": _ones(TOKENS).long(),
        "indices_latents": torch.arange(FRAMES),
        "latents_clean": _video(facts.channels, 2),
        "indices_latents_clean": torch.arange(2),
        "latents_history_2x": _video(facts.channels, 2),
        "indices_latents_history_2x": torch.arange(2),
        "latents_history_4x": _video(facts.channels, 16),
        "indices_latents_history_4x": torch.arange(16),
    }


def _ideogram_4(facts: Facts) -> dict[str, Any]:
    """Tokens of text (tag 3), then of the image (tag 2), in one sequence."""
    total = 64 + TOKENS
    return {
        "hidden_states": _normal(total, facts.channels),
        "encoder_hidden_states": _normal(total, facts.get("llm_features_dim")),
        "timestep": torch.full((BATCH,), 0.5),
        "position_ids": _positions(total).repeat(BATCH, 1, 1),
        "segment_ids": torch.zeros(BATCH, total, dtype=torch.long),
        "indicator": torch.tensor([[3] * TOKENS + [2] * 64] * BATCH),
    }


def _wan_animate(facts: Facts) -> dict[str, Any]:
    side = facts.get("motion_encoder_size")
    return {
        "hidden_states": _video(facts.channels, FRAMES + 1),
        "pose_hidden_states": _video(facts.get("latent_channels"), FRAMES),
        "face_pixel_values": torch.rand(BATCH, 3, 4 * FRAMES, side, side),
    }


SPECIAL: dict[str, Special] = {
    "AceStepTransformer1DModel": lambda f: {
        "hidden_states": _normal(64, f.get("audio_acoustic_hidden_dim")),
        "context_latents": _normal(64, f.channels - f.get("audio_acoustic_hidden_dim")),
        "encoder_hidden_states": _normal(TOKENS, f.get("encoder_hidden_size", "hidden_size")),
        "timestep": torch.full((BATCH,), 0.5),
        "timestep_r": torch.full((BATCH,), 0.25),
    },
    "AnyFlowFARTransformer3DModel": lambda f: {
        "hidden_states": _normal(FRAMES, f.channels, SIDE, SIDE),
        "timestep": torch.full((BATCH, FRAMES), 500.0),
        "r_timestep": torch.full((BATCH, FRAMES), 250.0),
        "chunk_partition": [1, 2],
    },
    "AnyFlowTransformer3DModel": lambda f: {
        "hidden_states": _normal(FRAMES, f.channels, SIDE, SIDE),
        "timestep": torch.full((BATCH, FRAMES), 500.0),
        "r_timestep": torch.full((BATCH, FRAMES), 250.0),
    },
    # These two encode one video at a time.
    "AutoencoderKLAllegro": lambda _: {"sample": torch.rand(1, 3, 24, 320, 320)},
    "AutoencoderKLHunyuanVideo15": lambda _: {"sample": torch.rand(1, 3, 9, 64, 64)},
    "AutoencoderKLMiniMaxH3": lambda _: {"sample": _video(3, 34, 64)},
    "AutoencoderKLMiniMaxH3Audio": lambda _: {"sample": _normal(1, 8000)},
    "AutoencoderKLMochi": lambda _: {"sample": _video(3, 7, 64)},
    "AutoencoderKLQwenImage21": lambda f: {"sample": _video(f.channels, 1, 64)},
    "BriaFibo2Transformer2DModel": lambda f: {
        "encoder_hidden_states": _normal(
            1 + len(f.module.config["injection_layer_ids"]), TOKENS, f.get("cap_feat_dim")
        ),
        "timestep": torch.full((BATCH,), 0.5),
    },
    "BriaFiboTransformer2DModel": lambda f: {
        "text_encoder_layers": [
            _normal(TOKENS, f.get("text_encoder_dim")) for _ in f.module.caption_projection
        ]
    },
    "CogVideoXTransformer3DModel": lambda f: {
        "hidden_states": _normal(FRAMES, f.channels, SIDE, SIDE),
        "encoder_hidden_states": _normal(f.get("max_text_seq_length"), f.get("text_embed_dim")),
    },
    "ConsisIDTransformer3DModel": lambda f: {
        "hidden_states": _normal(FRAMES, f.channels, SIDE, SIDE),
        "encoder_hidden_states": _normal(f.get("max_text_seq_length"), f.get("text_embed_dim")),
    },
    "ControlNetUnionModel": lambda _: {
        "controlnet_cond": [torch.rand(BATCH, 3, 8 * SIDE, 8 * SIDE)],
        "control_type": torch.tensor([[1.0, 0, 0, 0, 0, 0]] * BATCH),
        "control_type_idx": [0],
    },
    "Cosmos3AVAEAudioTokenizer": lambda _: {"sample": _normal(2, 19200)},
    "Cosmos3OmniTransformer": cosmos_3_omni,
    "CosmosControlNetModel": lambda _: {
        "controls_latents": _video(16),
        "latents": _video(16),
        "condition_mask": torch.ones(BATCH, 1, FRAMES, SIDE, SIDE),
        "padding_mask": torch.zeros(1, 1, 8 * SIDE, 8 * SIDE),
    },
    "CosmosTransformer3DModel": lambda _: {
        "padding_mask": torch.zeros(1, 1, 8 * SIDE, 8 * SIDE),
        "fps": 24,
    },
    "ErnieImageTransformer2DModel": lambda f: {
        "text_bth": _normal(TOKENS, f.get("text_in_dim")),
        "text_lens": torch.tensor([TOKENS] * BATCH),
    },
    "GlmImageTransformer2DModel": lambda _: {
        "prior_token_id": _integers(16384, (SIDE // 2) ** 2),
        "prior_token_drop": torch.zeros(BATCH, (SIDE // 2) ** 2, dtype=torch.bool),
    },
    "FluxControlNetModel": lambda _: {"controlnet_mode": torch.zeros(BATCH, dtype=torch.long)},
    "HiDreamImageTransformer2DModel": lambda f: {
        "hidden_states": _normal(f.channels, SIDE, SIDE),
        "img_ids": None,
        "timesteps": torch.full((BATCH,), 500),
        "encoder_hidden_states_t5": _normal(TOKENS, 4096),
        "encoder_hidden_states_llama3": torch.randn(32, BATCH, TOKENS, 4096),
        "pooled_embeds": _normal(f.get("text_emb_dim")),
    },
    "HunyuanDiT2DControlNetModel": _hunyuan_dit,
    "HunyuanDiT2DModel": _hunyuan_dit,
    "HunyuanImageTransformer2DModel": lambda _: {"timestep": torch.full((BATCH,), 500.0)},
    "HunyuanVideo15Transformer3DModel": lambda f: {
        "timestep": torch.full((BATCH,), 500.0),
        "encoder_hidden_states_2": _normal(TOKENS, f.get("text_embed_2_dim")),
        "encoder_attention_mask_2": torch.ones(BATCH, TOKENS, dtype=torch.bool),
        "image_embeds": _normal(8, f.get("image_embed_dim")),
    },
    "HunyuanVideoFramepackTransformer3DModel": _framepack,
    "I2VGenXLUNet": lambda f: {
        "sample": _video(f.channels),
        "fps": torch.full((BATCH,), 16),
        "image_latents": _video(f.channels),
        "image_embeddings": _normal(f.get("cross_attention_dim")),
    },
    "Ideogram4Transformer2DModel": _ideogram_4,
    "JoyImageEditPlusTransformer3DModel": lambda f: {
        "hidden_states": _normal(64, f.channels, 1, 2, 2),
        "shape_list": [[(1, 8, 8)]] * BATCH,
    },
    "Kandinsky3UNet": lambda _: {"encoder_attention_mask": _ones(TOKENS)},
    "Kandinsky5Transformer3DModel": _kandinsky_5,
    "Kandinsky6SRLatentUpscalerBank": lambda f: {
        "latents": _video(f.channels, FRAMES, 8),
        "scale": 2,
    },
    "Kandinsky6SRTransformer3DModel": lambda f: {
        "hidden_states": _normal(FRAMES, SIDE, SIDE, 2 * f.get("in_visual_dim") + 1)
    },
    "Kandinsky6Transformer3DModel": lambda f: {
        "hidden_states": _normal(FRAMES, SIDE, SIDE, 2 * f.get("in_visual_dim") + 1),
        "encoder_hidden_states": _normal(TOKENS, f.get("in_text_dim")),
        "pooled_projections": _normal(f.get("in_text_dim2")),
        "audio_hidden_states": _normal(TOKENS, f.get("in_audio_dim")),
    },
    "Krea2Transformer2DModel": lambda f: {
        "hidden_states": _normal(64, f.channels),
        "encoder_hidden_states": _normal(
            TOKENS, f.get("num_text_layers"), f.get("text_hidden_dim")
        ),
        "position_ids": _positions(TOKENS + 64),
        "timestep": torch.full((BATCH,), 0.5),
    },
    "LTX2VideoDiffusionDecoderModel": lambda f: {"z": _video(f.channels, FRAMES, 8)},
    "LTX2VideoTransformer3DModel": _ltx2,
    "LTXVideoTransformer3DModel": _packed_video,
    "LatteTransformer3DModel": lambda f: {
        "hidden_states": _video(f.channels, f.get("video_length")),
        "encoder_attention_mask": None,
    },
    "LongCatAudioDiTTransformer": lambda f: {
        "hidden_states": _normal(32, f.get("latent_dim")),
        "encoder_hidden_states": _normal(TOKENS, f.get("dit_text_dim")),
    },
    "LuminaNextDiT2DModel": _lumina_next,
    "MMAudioVAE": lambda _: {"sample": _normal(16384)},
    "MiniMaxH3Transformer3DModel": minimax_h3,
    "MiniMaxMusic3ConditionEncoder": lambda f: {
        "hidden_states": _normal(
            TOKENS, f.get("num_condition_layers") * f.get("condition_hidden_dim")
        )
    },
    "MiniMaxMusic3RVQDepthDecoder": lambda f: {"inputs_embeds": _normal(8, f.get("hidden_size"))},
    "MiniMaxMusic3Transformer1DModel": lambda f: {
        "hidden_states": _normal(f.channels, 32),
        "encoder_hidden_states": _normal(32, f.get("condition_dim")),
        "timestep": torch.full((BATCH,), 0.5),
    },
    "MiniMaxMusic3Vocoder": lambda f: {"latents": _normal(f.get("latent_channels"), 32)},
    "MMAudioVocoder": lambda f: {"mel": _normal(f.get("num_mels"), 32)},
    "OmniGenTransformer2DModel": _omnigen,
    "PixArtTransformer2DModel": lambda _: {
        "added_cond_kwargs": {"resolution": _ones(2) * 1024, "aspect_ratio": _ones(1)}
    },
    "PriorTransformer": lambda f: {
        "hidden_states": _normal(f.get("embedding_dim")),
        "proj_embedding": _normal(f.get("embedding_dim")),
        "encoder_hidden_states": _normal(f.get("num_embeddings"), f.get("embedding_dim")),
        "attention_mask": torch.ones(BATCH, f.get("num_embeddings"), dtype=torch.bool),
    },
    "QwenImage21Transformer2DModel": _qwen_image_21,
    "RFD4ProteinaAutoencoder": rfd4_autoencoder,
    "RFD4ProteinaTransformer": rfd4_transformer,
    "SanaWMLTX2RefinerTransformer3DModel": lambda f: {
        "hidden_states": _normal(64, f.channels),
        "timestep": torch.full((BATCH, 64), 500.0),
        "video_rotary_emb": (_ones(64, 4096), torch.zeros(BATCH, 64, 4096)),
    },
    "SanaWMTransformer3DModel": lambda f: {
        "timestep": torch.full((BATCH, 1, FRAMES), 500.0),
        "encoder_hidden_states": _normal(1, TOKENS, f.get("caption_channels")),
        "encoder_attention_mask": _ones(TOKENS).long(),
    },
    "ReduxImageEncoder": lambda f: {"x": _normal(TOKENS, f.get("redux_dim"))},
    "SparseControlNetModel": lambda f: {
        "sample": _video(f.channels),
        "encoder_hidden_states": torch.randn(BATCH * FRAMES, TOKENS, f.get("cross_attention_dim")),
        "controlnet_cond": _video(f.channels),
        "conditioning_mask": torch.ones(BATCH, 1, FRAMES, SIDE, SIDE),
    },
    "StableAudio3DiTModel": lambda f: {
        "hidden_states": _normal(f.get("io_channels"), 64),
        "timestep": torch.full((BATCH,), 0.5),
        "encoder_hidden_states": _normal(TOKENS, f.get("cond_token_dim")),
        "global_hidden_states": _normal(f.get("global_cond_dim")),
    },
    "StableAudioDiTModel": lambda f: {
        "hidden_states": _normal(f.channels, 64),
        "encoder_hidden_states": _normal(TOKENS, f.get("cross_attention_input_dim")),
        "global_hidden_states": _normal(1, f.get("global_states_input_dim")),
    },
    "StableCascadeUNet": lambda f: {
        "timestep_ratio": torch.full((BATCH,), 0.5),
        "clip_text_pooled": _normal(1, f.get("clip_text_pooled_in_channels")),
    },
    "T5FilmDecoder": lambda f: {
        "encodings_and_masks": [(_normal(TOKENS, f.get("d_model")), _ones(TOKENS))],
        "decoder_input_tokens": _normal(f.get("targets_length"), f.get("input_dims")),
        "decoder_noise_time": torch.full((BATCH,), 0.5),
    },
    "TransformerTemporalModel": lambda _: {"encoder_hidden_states": None, "num_frames": BATCH},
    "UNet1DModel": lambda f: {"sample": _normal(f.channels, 4096)},
    "UNetMotionModel": lambda f: {
        "sample": _video(f.channels),
        "encoder_hidden_states": torch.randn(BATCH * FRAMES, TOKENS, f.get("cross_attention_dim")),
    },
    "UNetSpatioTemporalConditionModel": lambda f: {
        "sample": _normal(FRAMES, f.channels, SIDE, SIDE),
        "encoder_hidden_states": _normal(1, f.get("cross_attention_dim")),
        "added_time_ids": _ones(3),
    },
    "UVit2DModel": lambda f: {
        "input_ids": _integers(f.get("codebook_size"), SIDE, SIDE),
        "encoder_hidden_states": _normal(TOKENS, f.get("encoder_hidden_size")),
        "pooled_text_emb": _normal(f.get("cond_embed_dim")),
        "micro_conds": _ones(5),
    },
    "WanAnimate2Transformer3DModel": wan_animate_2,
    "WanAnimateTransformer3DModel": _wan_animate,
    "WanVACETransformer3DModel": lambda f: {
        "control_hidden_states": _video(f.get("vace_in_channels"))
    },
    "ZImageControlNetModel": z_image,
    "ZImageTransformer2DModel": z_image,
}
"""Class -> the arguments that differ from the rules; None leaves one out."""
