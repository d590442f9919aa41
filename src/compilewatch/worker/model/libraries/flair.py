"""Flair: the parts of a tagger that call tensors, its language model and the tagger itself."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from compilewatch.records import Depth
from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.published import Configuration, PublishedModel

CHARACTERS = 48
"""Characters of a sentence in the language model."""

WORDS = (7, 5)
"""Words of each sentence of a batch, the longest first, as the tagger sorts them."""


class Flair(PublishedModel):
    """`SequenceTagger` on embeddings of a known length, and the `LanguageModel` that makes such."""

    name = "flair"
    classes = frozenset({"LanguageModel", "SequenceTagger"})

    def prepare(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")

    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        del depth
        import flair

        # Its constructors move a model to this device, which would undo the choice of the caller.
        where, flair.device = flair.device, torch.empty(0).device
        try:
            return _language_model(values) if "characters" in values else _tagger(values)
        finally:
            flair.device = where

    def call(self, module: nn.Module, values: Configuration) -> Call:
        """Indices of characters and the first state, or embeddings and numbers of words."""
        del module
        if values["class"] == "LanguageModel":
            characters = torch.randint(values["characters"], (CHARACTERS, BATCH))
            states = (
                torch.zeros(values["nlayers"], BATCH, values["hidden_size"]) for _ in range(2)
            )
            return Call(kwargs={"input": characters, "hidden": tuple(states), "decode": False})
        embeddings = torch.randn(BATCH, WORDS[0], values["embedding_length"])
        return Call(kwargs={"sentence_tensor": embeddings, "lengths": torch.tensor(WORDS)})


def _language_model(values: Configuration) -> nn.Module:
    from flair.data import Dictionary
    from flair.models import LanguageModel

    characters = Dictionary(add_unk=False)
    for each in range(values["characters"]):
        characters.add_item(str(each))
    module: nn.Module = LanguageModel(
        characters,
        is_forward_lm=True,
        hidden_size=values["hidden_size"],
        nlayers=values["nlayers"],
        embedding_size=values["embedding_size"],
    )
    return module


def _tagger(values: Configuration) -> nn.Module:
    """A tagger whose embeddings have the length of the published ones, and one word."""
    from flair.data import Dictionary
    from flair.embeddings import WordEmbeddings
    from flair.models import SequenceTagger

    embeddings = WordEmbeddings(
        None, vocab={"word": 0}, embedding_length=values["embedding_length"], name="embeddings"
    )
    tags = Dictionary(add_unk=False)
    tags.add_item("O")
    for tag in values["tags"]:
        for place in "SBEI":
            tags.add_item(f"{place}-{tag}")
    module: nn.Module = SequenceTagger(embeddings, tags, tag_type="ner", **values["arguments"])
    return module
