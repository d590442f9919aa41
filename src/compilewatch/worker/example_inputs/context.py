"""What a rule sees while it makes one argument: the model, its configuration, what is made so far.

A rule is a function of a `Context` that returns the value of one argument, or None to leave the
argument at its default. Rules ask for other arguments with `Context.value`, which makes them on
demand, so no order has to be kept. All tensors are real while inputs are being made, even where
the model is fake: counts and masks stay consistent, and `make_inputs` converts them at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilewatch.worker.example_inputs.signature import Signature
from compilewatch.worker.example_inputs.specs import generator

Rule = Callable[["Context"], Any]

BATCH = 2
"""Rows of every batch: sizes 0 and 1 are specialised by Dynamo."""

SEQUENCE = 32
"""Tokens of a text, where no medium needs more."""

KINDS: dict[str, tuple[str, ...]] = {
    "image": ("vision", "visual", "image", "vit", "backbone", "vq", "encoder"),
    "video": ("video", "vision", "visual", "image", "vit", "backbone", "encoder"),
    "audio": ("audio", "speech", "sound", "acoustic", "codec", "encoder"),
    "text": ("text", "language", "llm", "decoder"),
    "decoder": ("decoder", "text", "language"),
    "qformer": ("qformer",),
}
"""Words in the name of a sub-configuration that say which medium it describes, best first."""


@dataclass
class Context:
    """The state of one `make_inputs` call."""

    module: nn.Module
    config: Any | None
    signature: Signature
    rules: Mapping[str, Rule]
    required_rules: Mapping[str, Rule]
    fallback: Callable[..., Any] | None = None
    train: bool = False
    batch: int = BATCH
    length: int | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    values: dict[str, Any] = field(default_factory=dict)
    strategies: dict[str, None] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)

    def value(self, name: str, *, required: bool = False) -> Any:
        """The value of an argument of this forward, made now if need be; None if not given.

        `required` makes it also where the forward itself could do without.
        """
        if name in self.values:
            return self.values[name]
        if name not in self.signature.parameters or name in self.dropped:
            return None
        if name in self.pending:  # a rule that asks for what is being made
            return None
        rules = [self.rules.get(name)]
        if required or name in self.signature.required:
            rules.append(self.required_rules.get(name))
            rules.append(self.fallback and partial(self.fallback, name=name))
        self.pending.append(name)
        for rule in rules:
            made = rule(self) if rule is not None else None
            if made is not None:
                self.values.setdefault(name, made)
                break
        self.pending.pop()
        return self.values.get(name)

    @property
    def sequence(self) -> int:
        """Tokens of a text: `SEQUENCE`, or fewer where the model has fewer positions."""
        if self.length is not None:
            return self.length
        positions = self.number("max_position_embeddings", kind="text", default=SEQUENCE)
        return min(SEQUENCE, positions) if positions > 1 else SEQUENCE

    def uses(self, strategy: str) -> None:
        """Note that a strategy took part; the first one noted comes first in the name."""
        self.strategies[strategy] = None

    # --- configuration ---------------------------------------------------------------------

    def configs(self, kind: str | None = None) -> Iterator[Any]:
        """The configuration and its sub-configurations: those of a kind, the root, the rest."""
        if self.config is None:
            return
        tree = list(_walk(self.config, ""))
        words = KINDS.get(kind or "", ())
        ranked = sorted(tree, key=lambda item: _rank(item[0], words))
        for _, config in ranked:
            yield config

    def find(self, *names: str, kind: str | None = None) -> Any:
        """The first of these settings that is not None: configurations of `kind` first."""
        for config in self.configs(kind):
            for name in names:
                found = getattr(config, name, None)
                if found is not None:
                    return found
        return None

    def number(self, *names: str, kind: str | None = None, default: int) -> int:
        """`find` for one whole number; the first element of a sequence."""
        for config in self.configs(kind):
            for name in names:
                found = getattr(config, name, None)
                if isinstance(found, (list, tuple)) and found:
                    found = found[0]
                if isinstance(found, int) and not isinstance(found, bool):
                    return found
        return default

    def lacks(self, medium: str) -> bool:
        """True where a model of several media was built without the tower of this one."""
        names = {"image": "vision_config", "video": "vision_config", "audio": "audio_config"}
        name = names[medium]
        return hasattr(self.config, name) and getattr(self.config, name) is None

    # --- the module ------------------------------------------------------------------------

    @property
    def fake_mode(self) -> FakeTensorMode | None:
        """The mode that the module's own parameters were made under."""
        for parameter in self.module.parameters():
            if isinstance(parameter, FakeTensor):
                return parameter.fake_mode
            return None
        return None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the module's floating-point parameters."""
        for parameter in self.module.parameters():
            if parameter.dtype.is_floating_point:
                return parameter.dtype
        return torch.get_default_dtype()

    def vocabulary(self, embedding: nn.Module | None = None) -> int:
        """How many ids the input embedding has, else the configured size of the vocabulary."""
        if embedding is None:
            embedding = _input_embedding(self.module)
        if isinstance(embedding, nn.Embedding):
            return int(embedding.num_embeddings)
        return self.number("vocab_size", kind="text", default=1000)

    # --- tensors ---------------------------------------------------------------------------

    def normal(self, name: str, *shape: int) -> torch.Tensor:
        """Standard normal values of the module's dtype."""
        return torch.randn(shape, generator=generator(name)).to(self.dtype)

    def integers(self, name: str, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64 values in [low, high)."""
        high = max(high, low + 1)
        return torch.randint(low, high, shape, generator=generator(name))


def _walk(config: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    yield path, config
    if depth >= 4:
        return
    for name, value in vars(config).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from _walk(value, f"{path}.{name.lstrip('_')}" if path else name, depth + 1)


def _rank(path: str, words: tuple[str, ...]) -> int:
    """Earlier words rank first, the root after all words, other sub-configurations last."""
    if not path:
        return len(words)
    for rank, word in enumerate(words):
        if word in path:
            return rank
    return len(words) + 1


def _input_embedding(module: nn.Module) -> nn.Module | None:
    getter = getattr(module, "get_input_embeddings", None)
    if getter is None:  # no model of Transformers
        return next((m for m in module.modules() if isinstance(m, nn.Embedding)), None)
    try:
        found = getter()
    except (NotImplementedError, AttributeError):
        return None
    return found if isinstance(found, nn.Module) else None
