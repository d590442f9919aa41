"""Prices of models: dated, reviewed rows of `data/papers/prices.toml`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from compilewatch import data
from compilewatch.extras.papers import Reply

MILLION = 1_000_000


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: US dollars per million tokens of a model. `model` is a part of the model's id."""

    model: Annotated[str, Meta(min_length=1)]
    input_usd: Annotated[float, Meta(ge=0)]
    output_usd: Annotated[float, Meta(ge=0)]
    cache_read_usd: Annotated[float, Meta(ge=0)] = 0.0
    cache_write_usd: Annotated[float, Meta(ge=0)] = 0.0
    date: datetime.date
    source: Annotated[str, Meta(min_length=1)]

    def cost(self, reply: Reply) -> float:
        """US dollars for a reply."""
        return (
            reply.input_tokens * self.input_usd
            + reply.output_tokens * self.output_usd
            + reply.cache_read_tokens * self.cache_read_usd
            + reply.cache_write_tokens * self.cache_write_usd
        ) / MILLION

    def most(self, input_tokens: int, max_tokens: int) -> float:
        """The most that a request can cost, in US dollars."""
        dearest = max(self.input_usd, self.cache_write_usd)
        return (input_tokens * dearest + max_tokens * self.output_usd) / MILLION


class ModelPrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`papers/prices.toml`."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    price: tuple[ModelPrice, ...] = ()


def price_of(file: Path, model: str) -> ModelPrice | None:
    """The newest price whose `model` is part of the id, the longest first; None without a row.

    A fitting row of a project's own file applies, if there is any. Ids of inference profiles
    (`us.`…) contain the id of their model. Raises ConfigError.
    """
    files = data.read(file, data.MODEL_PRICES, ModelPrices)
    rows = ([row for row in file.price if row.model in model] for file in files)
    fitting = next(filter(None, rows), [])
    return max(fitting, key=lambda row: (len(row.model), row.date), default=None)
