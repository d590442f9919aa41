"""Applies overrides of inputs: `[override.inputs]` in `data/overrides/*.toml`.

Each key is an argument with a table of `specs`, whose sizes may be `batch`, `sequence` or
`config.…` (for a list, its length), or one of the settings of `AppliedSettings`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from compilewatch.errors import ConfigError, InputsError
from compilewatch.records import Depth, Request, Tier
from compilewatch.worker.example_inputs.context import Context
from compilewatch.worker.example_inputs.specs import from_spec, size_of
from compilewatch.worker.example_inputs.state import filled_cache
from compilewatch.worker.model.overrides import Overrides, Scope


class AppliedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of `[override.inputs]` that are not arguments.

    `drop`: arguments that keep their defaults. `batch`: rows, for models that require a number.
    `sequence`: tokens of text. `tokens`: the placeholder id of a medium (a number or `config.…`), 0
    for none. `features`: features per row of a medium, if the model has no method for it. `cache`:
    tokens in the cache that another model filled, for models that only read one.
    """

    drop: tuple[str, ...] = ()
    batch: int | None = None
    sequence: int | None = None
    tokens: dict[str, int | str] = {}
    features: dict[str, int] = {}
    cache: int | None = None


SETTINGS = frozenset(AppliedSettings.__struct_fields__)


def apply_overrides(ctx: Context, overrides: Overrides, request: Request, tier: Tier) -> None:
    """Apply the matching overrides to the context, before any rule runs.

    Raises ConfigError that names the model if a table is malformed or names no argument.
    """
    model_type = getattr(ctx.config, "model_type", "") or ""
    tables: dict[str, Any] = {}
    depth = request.depth if tier is Tier.FAKE else Depth.REDUCED
    scope = Scope(type(ctx.module).__name__, model_type, tier, depth, request.target.mode)
    for override in overrides.matching(scope):
        tables.update(override.inputs)
    if not tables:
        return
    try:
        settings = msgspec.convert(
            {k: v for k, v in tables.items() if k in SETTINGS}, AppliedSettings
        )
        _apply_settings(ctx, settings)
        for name, spec in tables.items():
            usable = name in ctx.signature.parameters and name not in ctx.dropped
            if name not in SETTINGS and usable:
                ctx.values[name] = from_spec(name, spec, _resolver(ctx), ctx.dtype)
    except (msgspec.ValidationError, InputsError) as error:
        raise ConfigError(f"overrides: {request.model.name}: {error}") from None
    if len(tables) > len(SETTINGS & set(tables)):
        ctx.uses("override")


def check_inputs(table: dict[str, Any]) -> None:
    """Raise InputsError if a table of `[override.inputs]` is wrong for every model.

    Every name in an expression counts as two, so only the format is checked.
    """
    msgspec.convert({k: v for k, v in table.items() if k in SETTINGS}, AppliedSettings)
    for name, spec in table.items():
        if name not in SETTINGS:
            from_spec(name, spec, lambda _: 2, torch.float32)


def _apply_settings(ctx: Context, settings: AppliedSettings) -> None:
    ctx.dropped |= frozenset(settings.drop)
    ctx.batch = settings.batch or ctx.batch
    ctx.length = settings.sequence
    ctx.features = dict(settings.features)
    if settings.cache is not None:
        ctx.values["past_key_values"] = filled_cache(ctx, settings.cache)
    resolve = _resolver(ctx)
    ctx.tokens = {m: size_of("tokens", t, resolve) for m, t in settings.tokens.items()}


def _resolver(ctx: Context) -> Any:
    def resolve(name: str) -> int:
        if name == "batch":
            return ctx.batch
        if name == "sequence":
            return ctx.sequence
        setting: Any = ctx.config
        for part in name.removeprefix("config.").split("."):
            setting = (
                setting.get(part) if isinstance(setting, dict) else getattr(setting, part, None)
            )
        if isinstance(setting, (list, tuple)):
            return len(setting)
        if not isinstance(setting, int):
            raise InputsError(f"{name!r} is not an integer of the configuration")
        return setting

    return resolve
