"""GLiNER: entities of any kind, found by a transformer and a layer for spans of words."""

from __future__ import annotations

import importlib

import torch
from torch import nn

from compilewatch.records import Depth
from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.published import Configuration, PublishedModel

WORDS = 10
ENTITIES = 2
LAYERS = 2
"""Layers of the transformer at reduced depth."""


class Gliner(PublishedModel):
    """`UniEncoderSpanModel` with its encoder's configuration, which it would download otherwise."""

    name = "gliner"
    classes = frozenset({"UniEncoderSpanModel"})

    def prepare(self) -> None:
        importlib.import_module("gliner.modeling.base")

    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        from gliner.config import UniEncoderSpanConfig
        from gliner.modeling.base import UniEncoderSpanModel

        arguments = values["arguments"]
        if depth is Depth.REDUCED:
            encoder = {**arguments["encoder_config"], "num_hidden_layers": LAYERS}
            arguments = {**arguments, "encoder_config": encoder}
        module: nn.Module = UniEncoderSpanModel(UniEncoderSpanConfig(**arguments))
        return module

    def call(self, module: nn.Module, values: Configuration) -> Call:
        """Names of entities, each after its token, then the words of a sentence and their spans."""
        del module
        given = values["arguments"]
        width = given["max_width"]
        ids = torch.randint(10, 1000, (BATCH, 2 * ENTITIES + 1 + WORDS))
        ids[:, 0 : 2 * ENTITIES : 2] = given["class_token_index"]
        words = torch.zeros_like(ids)
        words[:, -WORDS:] = torch.arange(1, WORDS + 1)
        starts = torch.arange(WORDS).repeat_interleave(width)
        ends = starts + torch.arange(width).repeat(WORDS)
        inside = ends < WORDS
        spans = torch.stack((starts, ends), dim=-1)
        return Call(
            kwargs={
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "words_mask": words,
                "text_lengths": torch.full((BATCH, 1), WORDS),
                "span_idx": spans.expand(BATCH, -1, -1).clone(),
                "span_mask": inside.expand(BATCH, -1).clone(),
            }
        )
