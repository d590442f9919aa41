"""A subject of a profile: one model on one target at one batch size, which obeys orders."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer.messages import (
    AnyOrder,
    Called,
    Classified,
    Classify,
    Compare,
    Compared,
    FirstCall,
    Generate,
    Generated,
    Measure,
    Measured,
    MeasureMemory,
    Prepare,
    Prepared,
    Recompile,
    Segmented,
    TimedSegment,
    Trace,
    TracedCall,
    Used,
)
from compilewatch.extras.profiles.worker import batches, gpu, timer, traces
from compilewatch.extras.profiles.worker.callables import CALLABLES, CalledModel
from compilewatch.extras.profiles.worker.classification import Classifier
from compilewatch.records import ConfigBuild, Phase, Record
from compilewatch.worker.model.overrides import overrides_of
from compilewatch.worker.model.resolve import BuiltModel, build_model
from compilewatch.worker.subject import Subject as Built
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.execution import mapped, observed, observed_in_float64

SEED = 0

REFERENCE_PARAMETERS = 500_000_000
"""A larger model is not copied in float64 to judge numbers: eager mode is the reference then."""


class ProfiledModel:
    """The state of one subject. `phase` is where it is, for the report of a failure."""

    def __init__(self, order: Prepare) -> None:
        self.order = order
        self.folder = Path(order.folder)
        self.phase = Phase.SETUP
        self._classifier: Classifier | None = None
        self._answers: Mapping[type[Record], Callable[[Any], Record]] = {
            FirstCall: self._first_call,
            Measure: self._measure,
            MeasureMemory: self._memory,
            Compare: self._compare,
            TimedSegment: self._segment,
            Trace: self._trace,
            Recompile: self._recompile,
            Generate: self._generate,
            Classify: self._classify,
        }

    def answer(self, order: AnyOrder) -> Record:
        """Carry out an order. Errors of the model and of the compiler propagate."""
        return self._answers[type(order)](order)

    # --- preparing -----------------------------------------------------------------------------

    def prepare(self) -> Prepared:
        """Build the model and its inputs; on a compiled target, also make a call in eager mode."""
        order = self.order
        self._set_up()
        self.phase = Phase.CREATE
        overrides = overrides_of(order.request)
        began = time.perf_counter()
        built = build_model(order.request, None, overrides, full_size=order.full_size)
        module = built.module.eval().to(_dtype(order.dtype)).to(self.device)
        load_seconds = time.perf_counter() - began
        self.phase = Phase.INPUTS
        inputs, rows = batches.make_batch(
            replace(built, module=module),
            order.request,
            overrides,
            order.batch_size,
            order.max_length,
        )
        inputs = mapped(inputs, self._placed)
        self.built = Built(
            request=order.request,
            module=module,
            inputs=inputs,
            fake_mode=None,
            artifacts=self.folder,
            enter=lambda phase: setattr(self, "phase", phase),
        )
        self.target: CalledModel = CALLABLES[order.target](self.built, order)
        self.call = gpu.finished(self.target.call) if self._on_gpu else self.target.call
        if order.target != "eager":
            self.phase = Phase.EAGER
            with torch.no_grad():
                module(*inputs.args, **inputs.kwargs)
        return self._prepared(built, rows, load_seconds)

    @property
    def _on_gpu(self) -> bool:
        return bool(self.device.type == gpu.CUDA)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = _dtype(self.order.dtype) if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device, dtype)

    def _set_up(self) -> None:
        import numpy

        self.device = gpu.device_of(self.order.device)
        torch.set_num_threads(self.order.threads)
        random.seed(SEED)
        numpy.random.seed(SEED)
        torch.manual_seed(SEED)
        for name, value in self.order.settings.items():
            setattr(torch._dynamo.config, name, value)
        build = self.order.request.model.build
        if isinstance(build, ConfigBuild) and build.weights:
            import huggingface_hub.constants

            huggingface_hub.constants.HF_HUB_OFFLINE = False

    def _prepared(self, built: BuiltModel, rows: int | None, load_seconds: float) -> Prepared:
        from compilewatch.worker.example_inputs import summarize

        module, inputs = self.built.module, self.built.inputs
        parameters = list(module.parameters())
        buffers = list(module.buffers())
        return Prepared(
            load_seconds=load_seconds,
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            model_bytes=sum(t.numel() * t.element_size() for t in (*parameters, *buffers)),
            inputs=summarize(inputs),
            strategy=inputs.strategy,
            batch_size=rows or 1,
            is_fixed=rows != self.order.batch_size,
            tokens_per_sample=batches.tokens_of(inputs),
            generates=_generates(module),
            labels=_labels(built.config),
            device=torch.cuda.get_device_name(self.device) if self._on_gpu else "cpu",
        )

    # --- measuring -----------------------------------------------------------------------------

    def _first_call(self, order: FirstCall) -> Called:
        self.phase = Phase.COMPILE
        seconds = self._compiled()
        for _ in range(order.warmup):
            self.call()
        self.phase = Phase.PROFILE
        return Called(seconds=seconds, graphs=self.target.graphs(), breaks=self.target.breaks())

    def _compiled(self) -> float:
        """Compile and make the first call; return its seconds."""
        first = gpu.finished(self.target.first_call) if self._on_gpu else self.target.first_call
        began = time.perf_counter()
        first()
        return time.perf_counter() - began

    def _measure(self, order: Measure) -> Measured:
        self.phase = Phase.PROFILE
        return timer.measure(self.call, order.runs, order.seconds)

    def _memory(self, _: MeasureMemory) -> Used:
        host = timer.peak_memory(self.call)
        return gpu.used(self.call, host) if self._on_gpu else Used(memory=host)

    def _compare(self, _: Compare) -> Compared:
        self.phase = Phase.COMPARE
        module = self.built.module
        small = sum(p.numel() for p in module.parameters()) <= REFERENCE_PARAMETERS
        found = numerics.assess(lambda: observed(self.built, module), self.target.observed, None)
        if not found.matches and small:  # only then is the cost of a reference worth it
            found = numerics.assess(
                lambda: observed(self.built, module),
                self.target.observed,
                lambda: observed_in_float64(self.built),
            )
        self.phase = Phase.PROFILE
        return Compared(numerics=found)

    def _segment(self, order: TimedSegment) -> Segmented:
        found = traces.divided(self.call, order.calls)
        breaks = self.target.breaks() or ()
        return Segmented(
            calls=order.calls,
            total_seconds=found.total / 1e9,
            seconds=found.seconds(),
            breaks=breaks,
            ends=self.target.ends(breaks),
        )

    def _trace(self, order: Trace) -> TracedCall:
        return traces.traced(self.call, order.calls, self.folder)

    def _recompile(self, _: Recompile) -> Called:
        self.phase = Phase.COMPILE
        self.target.forget()
        seconds = self._compiled()
        self.phase = Phase.PROFILE
        return Called(seconds=seconds, graphs=self.target.graphs(), breaks=self.target.breaks())

    def _generate(self, order: Generate) -> Generated:
        from compilewatch.extras.profiles.worker.generation import generate

        return generate(self.built, self.target, order)

    def _classify(self, order: Classify) -> Classified:
        if self._classifier is None:
            self._classifier = Classifier(self.built, self.order, self.folder, self.target)
        return self._classifier.classify(order)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"torch has no dtype {name!r}")
    return found


def _generates(module: torch.nn.Module) -> bool:
    can = getattr(module, "can_generate", None)
    return bool(can()) if callable(can) else False


def _labels(config: Any) -> tuple[str, ...]:
    names = getattr(config, "id2label", None)
    if not isinstance(names, dict):
        return ()
    return tuple(str(names[key]) for key in sorted(names, key=int))
