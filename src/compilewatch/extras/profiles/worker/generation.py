"""Generating text: a call over the prompt (prefill), then one for each further token (decode)."""

from __future__ import annotations

import time
from typing import Any

import torch

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer.messages import Generate, Generated
from compilewatch.extras.profiles.worker.callables import CalledModel
from compilewatch.worker.subject import Subject

Times = tuple[float, float]
"""Wall and CPU seconds."""


def generate(subject: Subject, target: CalledModel, order: Generate) -> Generated:
    """Generate greedily from the example inputs' ids; the first text is a warm-up.

    Compiled code adapts to a cache that grows in the first text, so later ones run without a
    compilation. Raises UsageError for a model that returns no cache.
    """
    ids = subject.inputs.kwargs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        raise UsageError("generation needs input_ids of two dimensions")
    call = target.compiled(subject.module)
    with torch.no_grad():
        rounds = [_text(call, ids, order.tokens) for _ in range(order.runs + 1)][1:]
    return Generated(
        prompt_tokens=int(ids.shape[1]),
        prefill_wall_seconds=tuple(prefill[0] for prefill, _ in rounds),
        prefill_cpu_seconds=tuple(prefill[1] for prefill, _ in rounds),
        decode_wall_seconds=tuple(decode[0] / order.tokens for _, decode in rounds),
        decode_cpu_seconds=tuple(decode[1] / order.tokens for _, decode in rounds),
    )


def _text(call: Any, ids: torch.Tensor, tokens: int) -> tuple[Times, Times]:
    begin = _now(ids)
    output = call(input_ids=ids, use_cache=True)
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise UsageError("the model returns no cache, so its tokens cannot be timed apart")
    after_prompt = _now(ids)
    for _ in range(tokens):
        ids = output.logits[:, -1:].argmax(-1)
        output = call(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
    return _between(begin, after_prompt), _between(after_prompt, _now(ids))


def _now(ids: torch.Tensor) -> Times:
    """The time when everything before has ended, on the device of the ids as well."""
    if ids.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def _between(begin: Times, end: Times) -> Times:
    return end[0] - begin[0], end[1] - begin[1]
