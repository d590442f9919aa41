"""A subject of a profile: one model on one target at one batch size, which obeys orders.

Each step that an order can name is a public method of `ProfiledModel`. The targets are what the
model is called on: `Eager`, `Inductor`, `Xla`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer.messages import (
    TEXTS_FILE,
    FirstCall,
    Generated,
    MemoryUse,
    Prepared,
    Round,
    SubjectJob,
)
from compilewatch.extras.profiles.infer.records import BreakCost, OpStat, Segments
from compilewatch.extras.profiles.worker import batches, measuring
from compilewatch.records import ConfigBuild, GraphBreak, Numerics, Phase
from compilewatch.worker.model.overrides import overrides_of
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.dynamo.capture import Capture, capture, unmeasured_guards
from compilewatch.worker.targets.dynamo.target import forward_of
from compilewatch.worker.targets.execution import mapped, observed, observed_in_float64

SEED = 0

REFERENCE_PARAMETERS = 500_000_000
"""A larger model is not copied in float64 to judge numbers: eager mode is the reference then."""

Times = tuple[float, float]
"""Wall and CPU seconds."""


class Eager:
    """The model as it is."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def first_call(self) -> None:
        """Compile and call."""
        self.call()

    def call(self) -> Any:
        """One call, finished when it returns."""
        with torch.no_grad():
            return self.subject.module(*self.subject.inputs.args, **self.subject.inputs.kwargs)

    def observed(self) -> dict[str, Any]:
        """The results of one call by path, for a comparison with eager mode."""
        return observed(self.subject, self.subject.module)

    def compiled(self, module: Any) -> Any:
        """Return how this target calls a module with other inputs."""
        return module

    def graphs(self) -> int | None:
        return None

    def breaks(self) -> tuple[GraphBreak, ...] | None:
        return None

    def ends(self, breaks: tuple[GraphBreak, ...]) -> dict[str, int]:
        """The index of the break at which the code of each compile id ends."""
        del breaks
        return {}

    def forget(self) -> None:
        """Drop compiled code, but keep what the compiler cached on disk."""


class Inductor(Eager):
    """`torch.compile` with Inductor and the shapes of this batch.

    Breaks are recorded as the target `dynamo` records them, so that their names agree.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        from torch._inductor import config
        from torch._inductor.utils import fresh_cache

        from compilewatch.worker.targets.inductor import prepare_tool_chain

        self.captured = Capture()
        self.optimized: Callable[..., Any] = subject.module
        # These hold until the process ends.
        config.compile_threads = 1
        config.fallback_random = True
        prepare_tool_chain()
        self._cache = fresh_cache()
        self._cache.__enter__()

    def first_call(self) -> None:
        def call(optimized: Callable[..., Any]) -> None:
            self.optimized = optimized
            self.call()

        # Inductor marks each graph in a trace; dynamic shapes would be slower code.
        with unmeasured_guards():
            self.captured = capture(
                call,
                self.subject.module,
                backend=torch._dynamo.lookup_backend("inductor"),
                dynamic=None,
            )

    def call(self) -> Any:
        with torch.no_grad():
            return self.optimized(*self.subject.inputs.args, **self.subject.inputs.kwargs)

    def observed(self) -> dict[str, Any]:
        return observed(self.subject, self.optimized)

    def compiled(self, module: Any) -> Any:
        return torch.compile(module)

    def graphs(self) -> int | None:
        return self.captured.graphs

    def breaks(self) -> tuple[GraphBreak, ...] | None:
        return self.captured.log.breaks(forward_of(self.subject.module))

    def ends(self, breaks: tuple[GraphBreak, ...]) -> dict[str, int]:
        capture = self.captured
        ids = list(capture.log.reports)
        at = capture.log.ends(ids, breaks, forward_of(self.subject.module))
        ends = {name: index for name, index in zip(ids, at, strict=True) if index >= 0}
        first = next(iter(capture.frames), None)
        if first in ends and first not in capture.captured:
            # The model's own frame was given up: its code runs as Python, in no compiled frame.
            ends[""] = ends[first]
        return ends

    def forget(self) -> None:
        from torch._inductor.utils import clear_caches

        torch._dynamo.reset()
        clear_caches()


class Xla(Eager):
    """PyTorch/XLA on its CPU device: the graph is traced in each call, and run once it is whole."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        from compilewatch.worker.targets.xla import device

        self._device = device
        self.placed: Subject | None = None

    def first_call(self) -> None:
        self.placed = self._device.on_device(self.subject)
        self.call()

    def call(self) -> Any:
        import torch_xla

        assert self.placed is not None
        with torch.no_grad():
            output = self.placed.module(*self.placed.inputs.args, **self.placed.inputs.kwargs)
        torch_xla.sync(wait=True)
        return output

    def observed(self) -> dict[str, Any]:
        assert self.placed is not None
        return {
            name: value.cpu() if isinstance(value, torch.Tensor) else value
            for name, value in observed(self.placed, self.placed.module).items()
        }

    def compiled(self, module: Any) -> Any:
        del module
        raise UsageError("only eager and inductor are called with inputs of another shape")

    def graphs(self) -> int | None:
        return int(self._device.compiled_graphs())


CALLABLES: dict[str, type[Eager]] = {"eager": Eager, "inductor": Inductor, "xla": Xla}


class ProfiledModel:
    """The state of one subject. `phase` is where it is, for the report of a failure.

    Its public methods are the steps of a profile: their arguments are the options of an order, and
    what they return is the reply. Errors of the model and of the compiler propagate.
    """

    def __init__(self, job: SubjectJob) -> None:
        self.job = job
        self.folder = Path(job.folder)
        self.phase = Phase.SETUP
        self._classifier: _Classifier | None = None

    def prepare(self) -> Prepared:
        """Build the model and its inputs; on a compiled target, also make a call in eager mode."""
        from compilewatch.worker.example_inputs import summarize

        job = self.job
        self._set_up()
        self.phase = Phase.CREATE
        overrides = overrides_of(job.request)
        began = time.perf_counter()
        built = build_model(job.request, None, overrides, full_size=job.full_size)
        module = built.module.eval().to(_dtype(job.dtype)).to(self.device)
        load_seconds = time.perf_counter() - began
        self.phase = Phase.INPUTS
        inputs, rows = batches.make_batch(
            replace(built, module=module), job.request, overrides, job.batch_size, job.max_length
        )
        inputs = mapped(inputs, self._placed)
        self.built = Subject(
            request=job.request,
            module=module,
            inputs=inputs,
            fake_mode=None,
            artifacts=self.folder,
            enter=lambda phase: setattr(self, "phase", phase),
        )
        self.target = CALLABLES[job.target](self.built)
        self.call = measuring.finished(self.target.call) if self._on_gpu else self.target.call
        if job.target != "eager":
            self.phase = Phase.EAGER
            with torch.no_grad():
                module(*inputs.args, **inputs.kwargs)
        parameters = list(module.parameters())
        can_generate = getattr(module, "can_generate", None)
        labels = getattr(built.config, "id2label", None)
        return Prepared(
            load_seconds=load_seconds,
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            model_bytes=sum(t.numel() * t.element_size() for t in (*parameters, *module.buffers())),
            inputs=summarize(inputs),
            strategy=inputs.strategy,
            batch_size=rows or 1,
            is_fixed=rows != job.batch_size,
            tokens_per_sample=batches.tokens_of(inputs),
            generates=bool(can_generate()) if callable(can_generate) else False,
            labels=tuple(str(labels[key]) for key in sorted(labels, key=int))
            if isinstance(labels, dict)
            else (),
            device=torch.cuda.get_device_name(self.device) if self._on_gpu else "cpu",
        )

    @property
    def _on_gpu(self) -> bool:
        return bool(self.device.type == measuring.CUDA)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = _dtype(self.job.dtype) if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device, dtype)

    def _set_up(self) -> None:
        import numpy

        self.device = measuring.device_of(self.job.device)
        torch.set_num_threads(self.job.threads)
        random.seed(SEED)
        numpy.random.seed(SEED)
        torch.manual_seed(SEED)
        for name, value in self.job.settings.items():
            setattr(torch._dynamo.config, name, value)
        build = self.job.request.model.build
        if isinstance(build, ConfigBuild) and build.weights:
            import huggingface_hub.constants

            huggingface_hub.constants.HF_HUB_OFFLINE = False

    def first_call(self, *, warmup: int) -> FirstCall:
        """Compile, make the first call, and then `warmup` more."""
        first = self._compiled()
        for _ in range(warmup):
            self.call()
        self.phase = Phase.PROFILE
        return first

    def recompile(self) -> FirstCall:
        """Drop the compiled code and make a first call again, from filled caches on disk."""
        self.phase = Phase.COMPILE
        self.target.forget()
        first = self._compiled()
        self.phase = Phase.PROFILE
        return first

    def _compiled(self) -> FirstCall:
        self.phase = Phase.COMPILE
        call: Callable[[], object] = self.target.first_call
        call = measuring.finished(call) if self._on_gpu else call
        began = time.perf_counter()
        call()
        seconds = time.perf_counter() - began
        return FirstCall(seconds=seconds, graphs=self.target.graphs(), breaks=self.target.breaks())

    def measure(self, *, runs: int, seconds: float) -> Round:
        """One round: `runs` calls, fewer if `seconds` are over; at least one."""
        self.phase = Phase.PROFILE
        return measuring.measure(self.call, runs, seconds)

    def memory(self) -> MemoryUse:
        """The peak memory of one call alone, and how busy calls keep a CUDA device."""
        host = measuring.peak_memory(self.call)
        return measuring.used(self.call, host) if self._on_gpu else MemoryUse(memory=host)

    def compare(self) -> Numerics:
        """Compare the numbers of compiled code with those of eager mode."""
        self.phase = Phase.COMPARE
        module = self.built.module
        small = sum(p.numel() for p in module.parameters()) <= REFERENCE_PARAMETERS
        compared = numerics.assess(lambda: observed(self.built, module), self.target.observed, None)
        if not compared.matches and small:  # only then is the cost of a reference worth it
            compared = numerics.assess(
                lambda: observed(self.built, module),
                self.target.observed,
                lambda: observed_in_float64(self.built),
            )
        self.phase = Phase.PROFILE
        return compared

    def segments(self, *, calls: int) -> tuple[Segments, tuple[BreakCost, ...]]:
        """Where a call spends its time, and what its graph breaks cost; from `calls` calls."""
        division = measuring.divided(self.call, calls)
        breaks = self.target.breaks() or ()
        return division.segments(calls), division.costs(breaks, self.target.ends(breaks))

    def trace(self, *, calls: int) -> tuple[OpStat, ...]:
        """Write `trace.json` and `stacks.txt` of `calls` calls; return the sums by operator."""
        return measuring.traced(self.call, calls, self.folder)[0]

    def generate(self, *, tokens: int, runs: int) -> Generated:
        """Generate greedily from the example inputs' ids; the first text is a warm-up.

        Each text is a call over the prompt (prefill), then `tokens` calls of one token each
        (decode). Compiled code adapts to a cache that grows in the first text, so later ones run
        without a compilation. Raises UsageError for a model that returns no cache.
        """
        ids = self.built.inputs.kwargs.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            raise UsageError("generation needs input_ids of two dimensions")
        call = self.target.compiled(self.built.module)
        with torch.no_grad():
            texts = [_text(call, ids, tokens) for _ in range(runs + 1)][1:]
        return Generated(
            prompt_tokens=int(ids.shape[1]),
            prefill=_round([prefill for prefill, _ in texts]),
            decode=_round([(wall / tokens, cpu / tokens) for _, (wall, cpu) in texts]),
        )

    def classify(self, *, start: int, stop: int) -> tuple[list[int], float]:
        """Predict the classes of rows `start` to `stop` of the texts in `texts.json`."""
        if self._classifier is None:
            self._classifier = _Classifier(self.built, self.job, self.target)
        return self._classifier.classify(start, stop)


def _round(times: list[Times]) -> Round:
    return Round(
        wall_seconds=tuple(wall for wall, _ in times), cpu_seconds=tuple(cpu for _, cpu in times)
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


class _Classifier:
    """The model with its tokenizer. Every batch has the same shape, so that code compiles once."""

    def __init__(self, subject: Subject, job: SubjectJob, target: Eager) -> None:
        """Raises UsageError if the model has no tokenizer beside its weights."""
        from transformers import AutoTokenizer

        build = job.request.model.build
        if not isinstance(build, ConfigBuild):
            raise UsageError("texts need a model with a tokenizer: a folder or a Hub repository")
        where = build.repo or str(Path(build.config_file).parent)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                where, revision=None if Path(where).is_dir() else job.request.model.revision
            )
        except (OSError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise UsageError(f"{where} has no tokenizer that can be loaded: {first}") from None
        self._texts = msgspec.json.decode(
            (Path(job.folder) / TEXTS_FILE).read_bytes(), type=list[str]
        )
        self._call = target.compiled(subject.module)
        self._device = next(subject.module.parameters()).device
        self._batch, self._length = job.batch_size, job.max_length or 512

    def classify(self, start: int, stop: int) -> tuple[list[int], float]:
        """The class with the largest logit of each text; the time includes the tokenizer."""
        began = time.perf_counter()
        classes: list[int] = []
        for row in range(start, stop, self._batch):
            texts = self._texts[row : min(row + self._batch, stop)]
            padded = texts + texts[-1:] * (self._batch - len(texts))
            encoded = self._tokenizer(
                padded,
                padding="max_length",
                truncation=True,
                max_length=self._length,
                return_tensors="pt",
            )
            with torch.no_grad():
                output = self._call(**encoded.to(self._device))
            logits = getattr(output, "logits", None)
            if not isinstance(logits, torch.Tensor) or logits.dim() != 2:
                raise UsageError("the model is no text classifier: it returns no class logits")
            classes += logits.argmax(-1).tolist()[: len(texts)]
        return classes, time.perf_counter() - began


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"torch has no dtype {name!r}")
    return dtype
