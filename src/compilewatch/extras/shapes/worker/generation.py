"""What `generate` compiles: for prompts of several lengths, and for each token after them."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from compilewatch.contract.failures import one_line
from compilewatch.records import ShapeCall, ShapeSeries
from compilewatch.worker.example_inputs import variants
from compilewatch.worker.example_inputs.sizes import SEQUENCE, inputs_of, sizes_of, tokens_of
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo.capture import Backend
from compilewatch.worker.targets.dynamo.series import series

PROMPTS = (1, 2, 16, 17, 128, 512)

TOKENS, TOKENS_BETWEEN = 64, 4
"""How many tokens follow the shortest and the longest prompt, and each prompt between them."""


def generation(subject: Subject) -> dict[str, ShapeSeries]:
    """Return what `generate` compiles for `PROMPTS`, by cache and by who compiles.

    `TOKENS` are asked for, and some texts end earlier. The sizes of a call are `prompt` and `step`;
    step 0 is the prefill, which gives the first token. A user compiles the forward, for all steps;
    `generate` by itself compiles those after the prefill, with a static cache.
    """
    return {
        "dynamic cache, forward compiled": _generated(subject, "dynamic", by_itself=False),
        "static cache, forward compiled": _generated(subject, "static", by_itself=False),
        "static cache, compiled by generate()": _generated(subject, "static", by_itself=True),
    }


def _generated(subject: Subject, cache: str, *, by_itself: bool) -> ShapeSeries:
    try:
        part = subject.in_fork(partial(_generating_part, cache=cache), tuple[str, int])
    except Exception as error:  # noqa: BLE001  (model code)
        refused = ShapeCall(sizes={}, error=one_line(error), rejected=True)
        return ShapeSeries(dynamic=None, calls=(refused,), graphs=())
    return subject.in_fork(
        partial(_in_series, part=part, cache=cache, by_itself=by_itself), ShapeSeries
    )


def _generating_part(subject: Subject, *, cache: str) -> tuple[str, int]:
    """The name of the module whose calls generate, and the attempt that makes them."""
    step = variants.decode_step(subject, cache=cache)
    names = (name for name, part in subject.module.named_modules() if part is step.module)
    return next(names), step.attempt


def _in_series(
    subject: Subject, *, part: tuple[str, int], cache: str, by_itself: bool
) -> ShapeSeries:
    """Generate after each prompt in eager mode, but for the calls of one compiled function."""
    from transformers import CompileConfig

    module: Any = subject.module.get_submodule(part[0])
    forward, prompt, step, tokens = module.forward, 0, 0, TOKENS
    on_any_device = CompileConfig()
    on_any_device._compile_all_devices = True

    def compiled_by_itself(backend: Backend) -> Any:
        return module.get_compiled_call(CompileConfig(backend=backend, mode=None))

    texts = _texts(subject)
    compiled_with = compiled_by_itself if by_itself else partial(torch.compile, forward)
    with series(subject, dynamic=None, compiled_with=compiled_with) as compiled:

        @functools.wraps(forward)
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal step
            inputs = ExampleInputs(strategy="generate", args=args, kwargs=kwargs)
            call = compiled.call({"prompt": prompt, "step": step}, inputs)
            step += 1
            if call.error or step == tokens:
                raise variants.GenerationStep(module, inputs)
            return compiled.output

        if by_itself:
            module.get_compiled_call = lambda _: called
        else:
            module.forward = called
        for prompt, inputs in texts.items():
            step = int(by_itself)
            tokens = TOKENS if prompt in (min(texts), max(texts)) else TOKENS_BETWEEN
            function, arguments = variants.attempts(replace(subject, inputs=inputs))[part[1]]
            with contextlib.suppress(variants.GenerationStep):
                variants.generate(
                    subject,
                    function,
                    arguments,
                    cache=cache,
                    tokens=TOKENS,
                    compile_config=on_any_device if by_itself else None,
                    disable_compile=not by_itself,
                )
        return compiled.record()


def _texts(subject: Subject) -> dict[int, ExampleInputs]:
    """The inputs by the tokens of their prompts, no more than the model has positions for."""
    if "input_ids" not in subject.inputs.kwargs or SEQUENCE not in sizes_of(subject):
        return {0: subject.inputs}
    config: Any = subject.module.config
    positions = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    longest = positions - TOKENS if positions else max(PROMPTS)
    several = [inputs_of(subject, {SEQUENCE: min(prompt, longest)}) for prompt in PROMPTS]
    return {tokens_of(inputs) or 0: inputs for inputs in several}
