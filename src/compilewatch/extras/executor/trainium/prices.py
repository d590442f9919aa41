"""Prices of instances: dated, reviewed rows of `data/trainium_prices.toml`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from compilewatch import data

MINIMUM_SECONDS = 60.0
"""EC2 bills Linux per second, with this minimum after each start (StartInstances)."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: US dollars per hour for one instance type in some regions."""

    instance_type: str
    regions: Annotated[tuple[str, ...], Meta(min_length=1)]
    usd_per_hour: Annotated[float, Meta(gt=0)]
    date: datetime.date
    source: Annotated[str, Meta(min_length=1)]

    def cost(self, seconds: float) -> float:
        """Return US dollars for an instance that has run for `seconds`, without its disks."""
        return max(seconds, MINIMUM_SECONDS) / 3600 * self.usd_per_hour


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`trainium_prices.toml`."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    price: tuple[Price, ...] = ()


def price_of(file: Path, instance_type: str, region: str) -> Price | None:
    """Return the newest price of a type in a region, of a project's own file if it has one.

    None without a row. Raises ConfigError for a malformed file.
    """

    def fits(row: Price) -> bool:
        return row.instance_type == instance_type and region in row.regions

    files = data.read(file, data.TRAINIUM_PRICES, Prices)
    fitting = next((f for f in (list(filter(fits, file.price)) for file in files) if f), [])
    return max(fitting, key=lambda row: row.date, default=None)
