"""The tables of compilewatch.toml: each groups the settings of one component."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class SettingsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables."""


class PushgatewaySettings(SettingsSection, frozen=True, kw_only=True):
    url: str = ""
    username: str = ""
    password: str = ""
    replace: bool = False


class LokiSettings(SettingsSection, frozen=True, kw_only=True):
    url: str = ""
    username: str = ""
    password: str = ""


class S3Settings(SettingsSection, frozen=True, kw_only=True):
    url: str = ""
    endpoint_url: str = ""


class PublishSettings(SettingsSection, frozen=True, kw_only=True):
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0
    retry_seconds: Annotated[float, Meta(ge=0)] = 30.0


class TrainiumSettings(SettingsSection, frozen=True, kw_only=True):
    instance: str = ""
    tag: str = "compilewatch=trainium"
    region: str = ""
    profile: str = ""
    host: str = ""
    ssh_port: Annotated[int, Meta(ge=1, le=65535)] = 22
    ready_command: str = ""
    ready_seconds: Annotated[float, Meta(gt=0)] = 900.0
    stop_seconds: Annotated[float, Meta(gt=0)] = 600.0
    poll_seconds: Annotated[float, Meta(gt=0)] = 15.0
    attempts: Annotated[int, Meta(ge=1)] = 5
    prices_file: str = ""


class PapersSettings(SettingsSection, frozen=True, kw_only=True):
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


class CloudWatchSettings(SettingsSection, frozen=True, kw_only=True):
    enabled: bool = False
    namespace: str = "Trainium/Training"
    region: str = ""
    profile: str = ""
    endpoint_url: str = ""
    instance_type: str = "trn1.2xlarge"


class ExecutorSettings(SettingsSection, frozen=True, kw_only=True):
    endpoint: str = ""
    token: str = ""
    token_file: str = ""
    certificates: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    state: str = ""
    environment: str = "default"
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 1
    max_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    max_memory_gib: Annotated[float, Meta(gt=0)] = 8.0
    keep_days: Annotated[float, Meta(gt=0)] = 30.0
    visible: tuple[str, ...] = ()
