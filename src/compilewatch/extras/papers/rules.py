"""The rules that every prompt contains: reviewed, versioned rows of `data/papers/rules.toml`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from compilewatch import data
from compilewatch.records.digests import digest


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule with its reason. `roles` are the prompts that contain it."""

    id: Annotated[str, Meta(pattern="^[a-z0-9-]+$")]
    text: Annotated[str, Meta(min_length=1)]
    reason: Annotated[str, Meta(min_length=1)]
    date: datetime.date
    roles: Annotated[tuple[str, ...], Meta(min_length=1)] = ("generate", "review")


class PaperRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`papers/rules.toml`. `version` is raised with each change of a rule."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    version: Annotated[int, Meta(ge=1)]
    rule: tuple[Rule, ...] = ()

    @property
    def sha256(self) -> str:
        return digest(self)

    def text(self, role: str) -> str:
        """The rules of a role, one line each."""
        return "\n".join(f"- [{r.id}] {r.text}" for r in self.rule if role in r.roles)


def load_rules(path: Path | None = None) -> PaperRules:
    """The rules of a project's own file, which also states the version, and then the shipped ones.

    A shipped rule is left out if an own one has its id. Raises ConfigError for a malformed file.
    """
    first, *others = data.read(path, data.RULES, PaperRules)
    ids = {rule.id for rule in first.rule}
    further = (rule for file in others for rule in file.rule if rule.id not in ids)
    return msgspec.structs.replace(first, rule=(*first.rule, *further))
