"""What an instance costs: dated, reviewed rows of `inputs/trainium_prices.toml`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from compilewatch.files import read_toml

MINIMUM_SECONDS = 60.0
"""EC2 bills Linux by the second, but at least this long after each start (StartInstances)."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: US dollars an hour for one type of instance, the same in some regions."""

    instance_type: str
    regions: Annotated[tuple[str, ...], Meta(min_length=1)]
    usd_per_hour: Annotated[float, Meta(gt=0)]
    date: datetime.date
    source: Annotated[str, Meta(min_length=1)]

    def cost(self, seconds: float) -> float:
        """US dollars for an instance that ran this long since its start; disks are not in it."""
        return max(seconds, MINIMUM_SECONDS) / 3600 * self.usd_per_hour


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`inputs/trainium_prices.toml`."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    price: tuple[Price, ...] = ()


def price_of(file: Path, instance_type: str, region: str) -> Price | None:
    """The newest price of a type in a region; None where there is no row, or no file.

    Raises ConfigError for a malformed file.
    """
    if not file.exists():
        return None
    rows = read_toml(file, Prices).price
    fitting = [row for row in rows if row.instance_type == instance_type and region in row.regions]
    return max(fitting, key=lambda row: row.date, default=None)
