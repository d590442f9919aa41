"""Time series: past values with their time features, lags and masks."""

from __future__ import annotations

import torch

from compilewatch.worker.example_inputs.context import Context, Rule

LENGTH = 64


def past_length(ctx: Context) -> int:
    """Return the context length plus the largest lag of the model."""
    length = ctx.number("context_length", "prediction_length", default=LENGTH)
    lags = ctx.find("lags_sequence")
    return length + (max(lags) if lags else 0)


def past_values(ctx: Context) -> torch.Tensor:
    """Return (batch, length), with a last dimension of channels if the model takes several."""
    ctx.uses("time_series")
    channels = ctx.number("num_input_channels", default=0) or ctx.number("input_size", default=1)
    many = channels > 1 or ctx.find("num_input_channels") is not None
    shape = (ctx.batch, past_length(ctx)) + ((channels,) if many else ())
    return ctx.normal("past_values", *shape)


def past_observed_mask(ctx: Context) -> torch.Tensor:
    return torch.ones_like(ctx.value("past_values"))


def past_time_features(ctx: Context) -> torch.Tensor:
    """Return (batch, length, time features): the configured ones, including the series' age."""
    return ctx.normal("past_time_features", ctx.batch, past_length(ctx), _time_features(ctx))


def future_values(ctx: Context) -> torch.Tensor | None:
    """Return (batch, prediction length) if the forward also takes future time features."""
    if "future_time_features" not in ctx.signature.parameters and not ctx.train:
        return None
    past = ctx.value("past_values")
    return ctx.normal("future_values", ctx.batch, _prediction(ctx), *past.shape[2:])


def future_time_features(ctx: Context) -> torch.Tensor:
    return ctx.normal("future_time_features", ctx.batch, _prediction(ctx), _time_features(ctx))


def static_real_features(ctx: Context) -> torch.Tensor | None:
    count = ctx.number("num_static_real_features", default=0)
    return ctx.normal("static_real_features", ctx.batch, count) if count else None


def static_categorical_features(ctx: Context) -> torch.Tensor | None:
    """(batch, features): ids below each feature's cardinality."""
    if not ctx.number("num_static_categorical_features", default=0):
        return None
    cardinality = ctx.find("cardinality") or [1]
    columns = [ctx.integers(f"static{i}", 0, c, ctx.batch) for i, c in enumerate(cardinality)]
    return torch.stack(columns, dim=-1)


def past_values_padding(ctx: Context) -> torch.Tensor:
    """Return zeros: nothing is padded."""
    return torch.zeros_like(ctx.value("past_values"))


def frequency(ctx: Context) -> torch.Tensor:
    """(batch, 1): the first kind of frequency."""
    return torch.zeros(ctx.batch, 1, dtype=torch.int64)


def _prediction(ctx: Context) -> int:
    return ctx.number("prediction_length", default=8)


def _time_features(ctx: Context) -> int:
    return ctx.number("num_time_features", default=1)


RULES: dict[str, Rule] = {
    "past_values": past_values,
    "past_observed_mask": past_observed_mask,
    "past_time_features": past_time_features,
    "future_values": future_values,
    "future_time_features": future_time_features,
    "static_real_features": static_real_features,
    "static_categorical_features": static_categorical_features,
}

REQUIRED_RULES: dict[str, Rule] = {
    "past_values_padding": past_values_padding,
    "freq": frequency,
}
