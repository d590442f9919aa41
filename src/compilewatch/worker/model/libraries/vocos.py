"""Vocos: a vocoder of a feature extractor, a backbone and a head."""

from __future__ import annotations

import importlib

import torch
from torch import nn

from compilewatch.records import Depth
from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.published import (
    Configuration,
    PublishedModel,
    import_torchaudio,
)


class Vocos(PublishedModel):
    """The chain that the `config.yaml` of a vocoder on mel spectrograms names."""

    name = "vocos"
    classes = frozenset({"Vocos"})

    def prepare(self) -> None:
        import_torchaudio()
        importlib.import_module("vocos")

    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        del depth
        from vocos import Vocos as Vocoder
        from vocos.feature_extractors import MelSpectrogramFeatures
        from vocos.heads import ISTFTHead
        from vocos.models import VocosBackbone

        module: nn.Module = Vocoder(
            feature_extractor=MelSpectrogramFeatures(**values["feature_extractor"]),
            backbone=VocosBackbone(**values["backbone"]),
            head=ISTFTHead(**values["head"]),
        )
        return module

    def call(self, module: nn.Module, values: Configuration) -> Call:
        """One second of sound."""
        del module
        samples = values["feature_extractor"]["sample_rate"]
        return Call(kwargs={"audio_input": torch.randn(BATCH, samples)})
