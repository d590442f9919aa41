from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

from compilewatch import data
from compilewatch.extras.executor.trainium import price_of

REVIEWED = data.TRAINIUM_PRICES


def test_the_reviewed_rows_can_be_read() -> None:
    rows = tomllib.loads(REVIEWED.read_text())["price"]
    for row in rows:
        for region in row["regions"]:
            price = price_of(REVIEWED, row["instance_type"], region)
            assert price is not None
            assert isinstance(price.date, datetime.date)
    assert price_of(REVIEWED, "trn9.metal", "us-east-1") is None
    assert price_of(REVIEWED, "trn1.2xlarge", "mars-1") is None


def test_a_row_of_a_project_applies_before_the_reviewed_ones(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        'schema_version = 1\n[[price]]\ninstance_type = "trn1.2xlarge"\nregions = ["us-east-1"]\n'
        'usd_per_hour = 9.5\ndate = 2020-01-01\nsource = "a contract"\n'
    )
    price = price_of(file, "trn1.2xlarge", "us-east-1")
    assert price is not None
    assert price.usd_per_hour == 9.5
    assert price_of(file, "trn1.2xlarge", "us-west-2") == price_of(
        REVIEWED, "trn1.2xlarge", "us-west-2"
    )
