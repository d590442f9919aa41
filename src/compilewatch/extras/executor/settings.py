"""The tables of compilewatch.toml about the executor and the Trainium instance."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from compilewatch.config import ExtraSettings
from compilewatch.errors import ExecutorError


class TrainiumSettings(ExtraSettings, frozen=True, kw_only=True):
    table = "trainium"
    paths = MappingProxyType({"prices_file": "trainium_prices.toml"})

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


class ExecutorSettings(ExtraSettings, frozen=True, kw_only=True):
    table = "executor"
    paths = MappingProxyType({"token_file": "", "certificates": "", "state": ""})

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

    def secret(self) -> str:
        """The token: of its file, if one is named; empty: none. Raises ExecutorError."""
        if not self.token_file:
            return self.token
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ExecutorError(f"{self.token_file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ExecutorError(
                f"{self.token_file} is not text: it must hold the token only"
            ) from None
