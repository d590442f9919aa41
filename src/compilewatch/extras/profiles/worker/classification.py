"""Predicting the classes of texts, for the scores of a text classifier."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer.messages import TEXTS_FILE, Classified, Classify, Prepare
from compilewatch.extras.profiles.worker.callables import CalledModel
from compilewatch.records import ConfigBuild
from compilewatch.worker.subject import Subject


class Classifier:
    """The model with its tokenizer. Every batch has the same shape, so that code compiles once."""

    def __init__(self, subject: Subject, order: Prepare, folder: Path, target: CalledModel) -> None:
        """Raises UsageError if the model has no tokenizer beside its weights."""
        from transformers import AutoTokenizer

        build = order.request.model.build
        if not isinstance(build, ConfigBuild):
            raise UsageError("texts need a model with a tokenizer: a folder or a Hub repository")
        where = build.repo or str(Path(build.config_file).parent)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                where, revision=None if Path(where).is_dir() else order.request.model.revision
            )
        except (OSError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise UsageError(f"{where} has no tokenizer that can be loaded: {first}") from None
        self._texts = msgspec.json.decode((folder / TEXTS_FILE).read_bytes(), type=list[str])
        self._call = target.compiled(subject.module)
        self._device = next(subject.module.parameters()).device
        self._batch, self._length = order.batch_size, order.max_length or 512

    def classify(self, order: Classify) -> Classified:
        """The class with the largest logit of each text; the time includes the tokenizer."""
        began = time.perf_counter()
        classes: list[int] = []
        for start in range(order.start, order.stop, self._batch):
            texts = self._texts[start : min(start + self._batch, order.stop)]
            padded = texts + texts[-1:] * (self._batch - len(texts))
            encoded = self._tokenizer(
                padded,
                padding="max_length",
                truncation=True,
                max_length=self._length,
                return_tensors="pt",
            )
            with torch.no_grad():
                output = self._call(**encoded.to(self._device))
            logits = getattr(output, "logits", None)
            if not isinstance(logits, torch.Tensor) or logits.dim() != 2:
                raise UsageError("the model is no text classifier: it returns no class logits")
            classes += logits.argmax(-1).tolist()[: len(texts)]
        return Classified(classes=tuple(classes), seconds=time.perf_counter() - began)
