"""Inputs of classes of diffusers that take what a pipeline packs: sequences, molecules, caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from compilewatch.worker.model.libraries.diffusers_inputs import Facts

BATCH = 2
TOKENS = 16
SIDE = 16
FRAMES = 3

ATOMS = 37
"""Atoms that a token of a molecule has at most."""


def cosmos_3_omni(facts: Facts) -> dict[str, Any]:
    """One sequence of text and then of the patches of a video, all of whose frames are noisy."""
    patches = SIDE // facts.get("latent_patch_size")
    video = FRAMES * patches**2
    places = torch.arange(TOKENS, TOKENS + video)
    return {
        "input_ids": torch.randint(0, facts.get("vocab_size"), (TOKENS,)),
        "text_indexes": torch.arange(TOKENS),
        "position_ids": torch.arange(TOKENS + video).repeat(3, 1),
        "und_len": TOKENS,
        "sequence_length": TOKENS + video,
        "vision_tokens": [torch.randn(1, facts.get("latent_channel"), FRAMES, SIDE, SIDE)],
        "vision_token_shapes": [(FRAMES, patches, patches)],
        "vision_sequence_indexes": places,
        "vision_mse_loss_indexes": places,
        "vision_timesteps": torch.full((video,), 500.0),
        "vision_noisy_frame_indexes": [torch.arange(FRAMES)],
    }


def minimax_h3(facts: Facts) -> dict[str, Any]:
    """One sequence of text, video and audio tokens; indices say which is where."""
    video, audio = 64, 8
    patch = 4 * facts.channels
    total = TOKENS + video + audio
    return {
        "hidden_states": torch.randn(BATCH, video, patch),
        "audio_hidden_states": torch.randn(BATCH, audio, facts.get("audio_in_channels")),
        "timestep": torch.tensor([500.0]),
        "timestep_indices": torch.zeros(total, dtype=torch.long),
        "token_tags": torch.tensor([0] * TOKENS + [1] * video + [2] * audio),
        "position_ids": torch.arange(total)[:, None].repeat(1, 3),
        "text_indices": torch.arange(TOKENS),
        "video_indices": torch.arange(video) + TOKENS,
        "audio_indices": torch.arange(audio) + TOKENS + video,
    }


def wan_animate_2(facts: Facts) -> dict[str, Any]:
    """The pass over the reference, which fills the cache that the steps of denoising read."""
    from diffusers.models.transformers.transformer_wan_animate_2 import WanAnimate2KVCache

    latents, side = facts.get("out_dim"), SIDE // 2
    grid = torch.tensor([[1, side, side]] * BATCH)
    return {
        "hidden_states": [torch.randn(latents, 1, SIDE, SIDE) for _ in range(BATCH)],
        "timestep": torch.full((BATCH,), 500.0),
        "encoder_hidden_states": [torch.randn(TOKENS, facts.get("text_dim"))] * BATCH,
        "condition_latents": [
            torch.randn(facts.get("in_dim") - latents, 1, SIDE, SIDE) for _ in range(BATCH)
        ],
        "kv_cache": WanAnimate2KVCache(len(facts.module.blocks)),
        "kv_cache_mode": "extract",
        "seq_len": side * side,
        "encoder_hidden_states_image": torch.randn(BATCH, 257, 1280),
        "offset_grid_sizes": grid,
    }


def z_image(facts: Facts) -> dict[str, Any]:
    """Latents and texts in lists; a control network shares its embeddings with a transformer."""
    channels, text = facts.channels, facts.get("cap_feat_dim")
    values: dict[str, Any] = {}
    if "control_context" in facts.parameters:
        channels = facts.get("control_in_dim")
        text = facts.module.cap_embedder[-1].in_features
        values["control_context"] = [torch.randn(channels, 1, SIDE, SIDE) for _ in range(BATCH)]
    return values | {
        "x": [torch.randn(channels, 1, SIDE, SIDE) for _ in range(BATCH)],
        "t": torch.full((BATCH,), 0.5),
        "cap_feats": [torch.randn(TOKENS, text) for _ in range(BATCH)],
    }


def _molecule() -> dict[str, Any]:
    """A batch of molecules of which every token is to be made."""
    return {
        "padding_mask": torch.ones(BATCH, TOKENS, dtype=torch.bool),
        "token_type": torch.zeros(BATCH, TOKENS, dtype=torch.long),
        "atom37_mask": torch.ones(BATCH, TOKENS, ATOMS, dtype=torch.bool),
        "conditioning": {
            "is_in_context_conditioning": torch.zeros(BATCH, TOKENS, dtype=torch.bool),
            "supports_local_latent": torch.ones(BATCH, TOKENS, dtype=torch.bool),
        },
    }


def rfd4_autoencoder(facts: Facts) -> dict[str, Any]:
    return _molecule() | {
        "z_latent": torch.randn(BATCH, TOKENS, facts.get("latent_dim")),
        "ca_coors_nm": torch.randn(BATCH, TOKENS, 3),
    }


def rfd4_transformer(facts: Facts) -> dict[str, Any]:
    """With the conditions that its features require; those that may be absent are."""
    molecule = _molecule()
    atoms = ("hbond", "pistack", "pication", "saltbridge", "hydrophobic", "metal-coord")
    one = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    molecule["conditioning"] |= {
        **{f"condition_{name}_1_atom": one[..., None].repeat(1, 1, ATOMS) for name in atoms},
        "condition_index-group_1_token": one,
        "molecule_iid": one,
        "molecule_entity_id": one,
        "token_bond_path_length": torch.randint(0, 8, (BATCH, TOKENS, TOKENS)),
    }
    return molecule | {
        "bb_ca": torch.randn(BATCH, TOKENS, 3),
        "local_latents": torch.randn(BATCH, TOKENS, facts.get("latent_dim")),
        "bb_ca_time": torch.full((BATCH,), 0.5),
        "local_latents_time": torch.full((BATCH,), 0.5),
    }
