"""pyannote.audio: models of segmentation and of embeddings of speakers."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import torch
from torch import nn

from compilewatch.records import Depth
from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.published import (
    Configuration,
    PublishedModel,
    import_torchaudio,
)

_MODULES = {
    "PyanNet": "pyannote.audio.models.segmentation",
    "WeSpeakerResNet34": "pyannote.audio.models.embedding",
    "XVectorSincNet": "pyannote.audio.models.embedding",
}


class Pyannote(PublishedModel):
    """A class of `pyannote.audio.models` for the task that its checkpoint stores beside weights."""

    name = "pyannote-audio"
    classes = frozenset(_MODULES)

    def prepare(self) -> None:
        os.environ["PYANNOTE_METRICS_ENABLED"] = "0"  # it would report each model to its makers
        import_torchaudio()
        with warnings.catch_warnings():
            # Audio files are decoded by FFmpeg, which need not be here.
            warnings.simplefilter("ignore")
            importlib.import_module("pyannote.audio.models.segmentation")
            importlib.import_module("pyannote.audio.models.embedding")

    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        del depth
        from pyannote.audio.core.task import Problem, Resolution, Specifications

        chosen = getattr(importlib.import_module(_MODULES[values["class"]]), values["class"])
        module: Any = chosen(**values["arguments"])
        count = values.get("classes")
        several = values.get("powerset_max_classes")
        if count is None:
            problem, resolution = Problem.REPRESENTATION, Resolution.CHUNK
        else:
            resolution = Resolution.FRAME
            problem = (
                Problem.MULTI_LABEL_CLASSIFICATION
                if several is None
                else Problem.MONO_LABEL_CLASSIFICATION
            )
        module.specifications = Specifications(
            problem=problem,
            resolution=resolution,
            duration=values["duration"],
            classes=None if count is None else [f"speaker{each}" for each in range(count)],
            powerset_max_classes=several,
            permutation_invariant=count is not None,
        )
        module.build()
        made: nn.Module = module
        return made

    def call(self, module: nn.Module, values: Configuration) -> Call:
        """Waveforms of shape (batch, channels, samples), as long as the model's chunks."""
        del module
        given = values["arguments"]
        samples = int(values["duration"] * given["sample_rate"])
        return Call(kwargs={"waveforms": torch.randn(BATCH, given["num_channels"], samples)})
