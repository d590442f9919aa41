"""Ultralytics: models of YOLO from the YAML files of the package."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from compilewatch.records import Depth
from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.published import Configuration, PublishedModel

SIDE = 640
"""Height and width of an image, as the models are published."""

_MODULE = "ultralytics.nn.tasks"


class Ultralytics(PublishedModel):
    """A class of `ultralytics.nn.tasks`, which is what `YOLO(...).model` is."""

    name = "ultralytics"
    classes = frozenset({"DetectionModel", "SegmentationModel", "WorldModel"})

    def prepare(self) -> None:
        importlib.import_module(_MODULE)

    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        del depth
        tasks: Any = importlib.import_module(_MODULE)
        module: nn.Module = getattr(tasks, values["class"])(
            values["configuration"], nc=values["nc"], verbose=False
        )
        return module

    def call(self, module: nn.Module, values: Configuration) -> Call:
        del module, values
        return Call(args=(torch.rand(BATCH, 3, SIDE, SIDE),))
