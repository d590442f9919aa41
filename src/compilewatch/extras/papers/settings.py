"""The tables of compilewatch.toml about papers, and about metrics in CloudWatch."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta

from compilewatch.config import ExtraSettings


class PapersSettings(ExtraSettings, frozen=True, kw_only=True):
    table = "papers"
    paths = MappingProxyType(
        {
            "folder": "papers/library",
            "rules_file": "papers/rules.toml",
            "prices_file": "papers/prices.toml",
            "replies_dir": "papers/replies",
        }
    )

    library: Literal["auto", "folder", "opensearch"] = "auto"
    folder: str = ""
    opensearch_endpoint: str = ""
    opensearch_index: str = "research-papers-v2"
    region: str = ""
    profile: str = ""
    s3_endpoint_url: str = ""
    provider: Literal["bedrock", "scripted"] = "bedrock"
    model: str = ""
    endpoint_url: str = ""
    rules_file: str = ""
    prices_file: str = ""
    replies_dir: str = ""
    max_paper_tokens: Annotated[int, Meta(ge=500)] = 40_000
    max_repairs: Annotated[int, Meta(ge=0, le=3)] = 3
    device_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    environment: str = ""
    usd_per_hour: Annotated[float, Meta(ge=0)] = 0.0


class CloudWatchSettings(ExtraSettings, frozen=True, kw_only=True):
    table = "cloudwatch"

    enabled: bool = False
    namespace: str = "Trainium/Training"
    region: str = ""
    profile: str = ""
    endpoint_url: str = ""
    instance_type: str = "trn1.2xlarge"
