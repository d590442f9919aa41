"""wtpsplit: models of XLM-RoBERTa and CANINE that find the ends of sentences."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from compilewatch.records import Depth
from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.published import Configuration, PublishedModel

LENGTH = 64
"""Tokens of XLM-RoBERTa, or characters of CANINE."""

LAYERS = 2
"""Layers at reduced depth."""

_CONFIGURATIONS = {
    "LACanineForTokenClassification": "LACanineConfig",
    "SubwordXLMForTokenClassification": "SubwordXLMConfig",
}


class Wtpsplit(PublishedModel):
    """A class of `wtpsplit.models` that derives from one of Transformers."""

    name = "wtpsplit"
    classes = frozenset(_CONFIGURATIONS)

    def prepare(self) -> None:
        importlib.import_module("wtpsplit.models")

    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        configs: Any = importlib.import_module("wtpsplit.configs")
        models: Any = importlib.import_module("wtpsplit.models")
        arguments = dict(values["arguments"])
        if depth is Depth.REDUCED:
            arguments["num_hidden_layers"] = min(LAYERS, arguments["num_hidden_layers"])
        config = getattr(configs, _CONFIGURATIONS[values["class"]])(**arguments)
        module: nn.Module = getattr(models, values["class"])(config)
        return module

    def call(self, module: nn.Module, values: Configuration) -> Call:
        del module, values
        ids = torch.randint(3, 1000, (BATCH, LENGTH))
        return Call(kwargs={"input_ids": ids, "attention_mask": torch.ones_like(ids)})
