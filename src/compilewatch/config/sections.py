"""The tables of compilewatch.toml: each groups the settings of one component.

Those of extras are in their folders; the row of an extra names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta


class SettingsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables."""


class ExtraSettings(SettingsSection, frozen=True, kw_only=True):
    """Base of the tables of extras.

    `paths` are the settings that are paths, and their default names in the folder `inputs`.
    """

    table: ClassVar[str]
    paths: ClassVar[Mapping[str, str]] = MappingProxyType({})


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
