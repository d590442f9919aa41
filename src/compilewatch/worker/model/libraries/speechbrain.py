"""SpeechBrain: the modules with parameters that a `hyperparams.yaml` names."""

from __future__ import annotations

import importlib
import inspect
import warnings

import torch
from torch import nn

from compilewatch.records import Depth
from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.published import (
    Configuration,
    PublishedModel,
    import_torchaudio,
)

FRAMES = 200
"""Frames of features: two seconds."""

_MODULES = {
    "Classifier": "speechbrain.lobes.models.ECAPA_TDNN",
    "ECAPA_TDNN": "speechbrain.lobes.models.ECAPA_TDNN",
    "ResNet": "speechbrain.lobes.models.ResNet",
}


class SpeechBrain(PublishedModel):
    """A class of `speechbrain.lobes.models`."""

    name = "speechbrain"
    classes = frozenset(_MODULES)

    def prepare(self) -> None:
        import_torchaudio()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("speechbrain")

    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        del depth
        chosen = getattr(importlib.import_module(_MODULES[values["class"]]), values["class"])
        module: nn.Module = chosen(**values["arguments"])
        return module

    def call(self, module: nn.Module, values: Configuration) -> Call:
        """Features of shape (batch, frames, features); a classifier gets one embedding each.

        The second waveform is half as long as the first one.
        """
        frames = 1 if values["class"] == "Classifier" else FRAMES
        features = torch.randn(BATCH, frames, values["arguments"]["input_size"])
        takes = inspect.signature(module.forward).parameters
        given = {next(iter(takes)): features}
        if "lengths" in takes:
            given["lengths"] = torch.tensor([1.0, 0.5])
        return Call(kwargs=given)
