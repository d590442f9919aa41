"""The state of making inputs: the model, its configuration, and the arguments made so far.

A rule is a function of a `Context` that returns the value of one argument, or None to keep the
argument's default. Rules get other arguments by `Context.value`, which makes them on demand, so the
order does not matter. All tensors are real while inputs are made, even if the model is fake: this
keeps counts and masks consistent, and `make_inputs` converts the tensors at the end.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilewatch.worker.example_inputs.files import generator
from compilewatch.worker.model.shrink import is_config

_TOKENS = ("sequence_length", "seq_length", "seq_len", "seqlen", "input_ids_length")
"""How the docstrings of Transformers end a dimension of tokens."""

SHAPE = re.compile(r"shape:?\s*`*\s*(?P<shape>\([^)]*\))")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The named arguments of a forward in order, without `*args` and `**kwargs`."""

    parameters: dict[str, inspect.Parameter]
    doc: str

    @property
    def required(self) -> tuple[str, ...]:
        """Arguments without a default."""
        return tuple(
            name for name, p in self.parameters.items() if p.default is inspect.Parameter.empty
        )

    def annotation(self, name: str) -> str:
        """Return the annotation of an argument as text, "" without one."""
        annotation: Any = self.parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            return ""
        return annotation if isinstance(annotation, str) else str(annotation)

    def documented_shape(self, name: str) -> tuple[str, ...] | None:
        """Return the dimensions in the docstring: `shape (batch_size, 3)` -> those two words.

        Transformers documents arguments in this way ("`name` (`torch.Tensor` of shape `(…)`"); see
        its docs on writing documentation. None without documentation.
        """
        sentence = SHAPE.search(self.documented_type(name))
        if sentence is None:
            return None
        return tuple(
            d.strip(" `") for d in sentence["shape"].strip("()").split(",") if d.strip(" `")
        )

    def documented_type(self, name: str) -> str:
        """Return the docstring's text after the name of an argument, "" without one."""
        line = re.search(rf"^\s*{re.escape(name)} ?\((?P<rest>.*)$", self.doc, re.MULTILINE)
        return line["rest"] if line else ""


def read_signature(module: nn.Module) -> Signature:
    """Return the signature of `module.forward`, through decorators that keep `__wrapped__`."""
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.kind not in skipped
    }
    return Signature(parameters=parameters, doc=inspect.getdoc(module.forward) or "")


Rule = Callable[["Context"], Any]

BATCH = 2
"""Rows of every batch: Dynamo specialises sizes 0 and 1."""

SEQUENCE = 32
"""Tokens of a text, unless a medium needs more."""

KINDS: dict[str, tuple[str, ...]] = {
    "image": ("vision", "visual", "image", "vit", "backbone", "vq", "encoder"),
    "video": ("video", "vision", "visual", "image", "vit", "backbone", "encoder"),
    "audio": ("audio", "speech", "sound", "acoustic", "codec", "encoder"),
    "text": ("text", "language", "llm", "decoder"),
    "decoder": ("decoder", "text", "language"),
    "encoder": ("encoder", "text", "language"),
    "qformer": ("qformer",),
}
"""Words in the name of a sub-configuration of a medium, best first."""


class Context:
    """The state of one `make_inputs` call.

    `rule` makes the value of an argument by its name, and more of them if it is required. Arguments
    in `without` are not made.
    """

    def __init__(
        self,
        module: nn.Module,
        rule: Callable[[Context, str, bool], Any],
        *,
        train: bool,
        batch: int,
        without: frozenset[str],
    ) -> None:
        config = getattr(module, "config", None)
        self.module = module
        self.config: Any = config if is_config(config) else None
        self.signature = read_signature(module)
        self.train = train
        self.batch = batch
        self.length: int | None = None
        self.tokens: dict[str, int] = {}
        self.features: dict[str, int] = {}
        self.placeholders = 0
        self.dropped = without
        self.values: dict[str, Any] = {}
        self.generation: dict[str, Any] = {}
        self.strategies: dict[str, None] = {}
        self._rule = rule
        self._pending: list[str] = []

    def value(self, name: str, *, required: bool = False) -> Any:
        """Return the value of an argument of this forward, making it if needed; None if not given.

        With `required`, the argument is made even if the forward does not require it.
        """
        if name in self.values:
            return self.values[name]
        if name not in self.signature.parameters or name in self.dropped:
            return None
        if name in self._pending:  # a rule that depends on the argument being made
            return None
        self._pending.append(name)
        value = self._rule(self, name, required or name in self.signature.required)
        self._pending.pop()
        if value is not None:
            self.values.setdefault(name, value)
        return self.values.get(name)

    @property
    def sequence(self) -> int:
        """Tokens of a text: `SEQUENCE`, or fewer if the model has fewer positions."""
        if self.length is not None:
            return self.length
        positions = self.number("max_position_embeddings", kind="text", default=SEQUENCE)
        return min(SEQUENCE, positions) if positions > 1 else SEQUENCE

    def uses(self, strategy: str) -> None:
        """Record a strategy; the first one comes first in the name."""
        self.strategies[strategy] = None

    # --- configuration ---------------------------------------------------------------------

    def configs(self, kind: str | None = None) -> list[Any]:
        """Return the configuration and its sub-configurations: of a kind, the root, the others."""
        words = KINDS.get(kind or "", ())

        def rank(item: tuple[str, Any]) -> int:
            """Earlier words rank first, the root after all words, other parts last."""
            path, _ = item
            found = (place for place, word in enumerate(words) if word in path)
            return next(found, len(words) + 1) if path else len(words)

        tree = _walk(self.config, "") if self.config is not None else ()
        return [config for _, config in sorted(tree, key=rank)]

    def find(self, *names: str, kind: str | None = None) -> Any:
        """Return the first of these settings that is not None; configurations of `kind` first."""
        return next(self._settings(names, kind), None)

    def number(self, *names: str, kind: str | None = None, default: int) -> int:
        """Return `find` for one integer; of a sequence, its first element."""
        for setting in self._settings(names, kind):
            if isinstance(setting, (list, tuple)) and setting:
                setting = setting[0]
            if isinstance(setting, int) and not isinstance(setting, bool):
                return setting
        return default

    def _settings(self, names: Iterable[str], kind: str | None) -> Iterator[Any]:
        configs = self.configs(kind)
        settings = (getattr(config, name, None) for config in configs for name in names)
        return (setting for setting in settings if setting is not None)

    def lacks(self, medium: str) -> bool:
        """Whether a model of several media was built without the tower of this medium."""
        names = {"image": "vision_config", "video": "vision_config", "audio": "audio_config"}
        name = names[medium]
        return hasattr(self.config, name) and getattr(self.config, name) is None

    def documented_sizes(self, name: str) -> tuple[int, ...] | None:
        """Return the sizes that the docstring gives an argument, None if a dimension is unknown.

        `(batch_size * num_codebooks, sequence_length)` -> (8, 32). Transformers documents the shape
        of each argument. Much of this text is shared and not correct for every model, so it is only
        used if the argument has no rule, and for dimensions that only few arguments have
        (codebooks).
        """
        dims = self.signature.documented_shape(name)
        if dims is None:
            return None
        sizes = []
        for dim in dims:
            factors = re.split(r"\s*[*x]\s+|\s*\*\s*", dim)
            known = [self._factor(factor.strip().removeprefix("config.")) for factor in factors]
            if None in known:
                return None
            sizes.append(math.prod(size for size in known if size is not None))
        return tuple(sizes)

    def _factor(self, word: str) -> int | None:
        if word.isdigit():
            return int(word)
        if word in ("batch_size", "batch", "bs", "bsz"):
            return self.batch
        if word.endswith(_TOKENS):
            return self.sequence
        if word in ("frames", "num_frames", "time_steps"):
            return 8
        if word == "num_choices":
            return 2
        return self.number(word, default=0) or None

    # --- the module ------------------------------------------------------------------------

    @property
    def fake_mode(self) -> FakeTensorMode | None:
        """The mode under which the module's own parameters were made."""
        first = next(self.module.parameters(), None)
        return first.fake_mode if isinstance(first, FakeTensor) else None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the module's floating-point parameters."""
        dtypes = (p.dtype for p in self.module.parameters() if p.dtype.is_floating_point)
        return next(dtypes, torch.get_default_dtype())

    def vocabulary(self) -> int:
        """Return the number of ids of the input embedding, or the configured vocabulary size."""
        try:
            embedding = self.module.get_input_embeddings()
        except (NotImplementedError, AttributeError):
            # For a model of another library, the first embedding is that of the input.
            of_transformers = hasattr(self.module, "get_input_embeddings")
            modules = () if of_transformers else self.module.modules()
            embedding = next((m for m in modules if isinstance(m, nn.Embedding)), None)
        if isinstance(embedding, nn.Embedding):
            return int(embedding.num_embeddings)
        of_encoder = "decoder_input_ids" in self.signature.parameters
        return self.number("vocab_size", kind="encoder" if of_encoder else "text", default=1000)

    # --- tensors ---------------------------------------------------------------------------

    def normal(self, name: str, *shape: int) -> torch.Tensor:
        """Return standard normal values in the module's dtype."""
        return torch.randn(shape, generator=generator(name)).to(self.dtype)

    def integers(self, name: str, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 values in [low, high)."""
        return torch.randint(low, max(high, low + 1), shape, generator=generator(name))


def _walk(config: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    yield path, config
    if depth >= 4:
        return
    for name, value in vars(config).items():
        if is_config(value):
            yield from _walk(value, f"{path}.{name.lstrip('_')}" if path else name, depth + 1)


ALONG_SEQUENCE: dict[str, str] = {
    "input_ids": "sequence",
    "attention_mask": "sequence",
    "mm_token_type_ids": "sequence",
    "bbox": "sequence",
    "inputs_embeds": "sequence",
    "labels": "sequence",
    "decoder_input_ids": "decoder_sequence",
}
"""Arguments whose dimension 1 counts tokens, with the name of that dimension."""

PACKED = frozenset({"pixel_values", "image_grid_thw", "grid_thw"})
"""Arguments that contain all images of a batch in sequence: no dimension is the batch."""


def dynamic_shapes(values: Mapping[str, Any], batch: int) -> dict[str, dict[int, str]]:
    """Return `{argument: {dimension: name}}` for tensors whose first dimension is the batch.

    Labels only vary along the sequence if they have the shape of the ids.
    """
    shapes: dict[str, dict[int, str]] = {}
    packed = PACKED if {"image_grid_thw", "grid_thw"} & set(values) else frozenset()
    ids = values.get("input_ids")
    for name, value in values.items():
        if not isinstance(value, torch.Tensor) or name in packed or value.dim() == 0:
            continue
        if value.shape[0] != batch:
            continue
        shapes[name] = {0: "batch"}
        if value.dim() < 2 or name not in ALONG_SEQUENCE:
            continue
        if name == "labels" and (ids is None or value.shape[1] != ids.shape[1]):
            continue
        shapes[name][1] = ALONG_SEQUENCE[name]
    return shapes
