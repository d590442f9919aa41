from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

import pytest

from compilewatch.errors import ConfigError
from compilewatch.trainium.prices import price_of

REVIEWED = Path(__file__).parents[3] / "inputs" / "trainium_prices.toml"


def test_the_reviewed_rows_can_be_read() -> None:
    rows = tomllib.loads(REVIEWED.read_text())["price"]
    for row in rows:
        for region in row["regions"]:
            found = price_of(REVIEWED, row["instance_type"], region)
            assert found is not None
            assert isinstance(found.date, datetime.date)
    assert price_of(REVIEWED, "trn9.metal", "us-east-1") is None
    assert price_of(REVIEWED, "trn1.2xlarge", "mars-1") is None


@pytest.mark.parametrize(
    "text",
    [
        "schema_version = 2",
        "price = 3",
        "schema_version = 1\nprices = []",
        'schema_version = 1\n[[price]]\ninstance_type = "a"\nregions = []',
        "schema_version = ",
        "\xff",
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"prices\.toml: ") as caught:
        price_of(file, "a", "b")
    assert "\n" not in str(caught.value)
