"""A subject of a profile: one model on one target at one batch size, which obeys orders.

Each step that an order can name is a public method of `ProfiledModel`. The targets are what the
model is called on: `Eager`, `Inductor`, `Xla`.
"""

import random
import time
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo

from compilewatch import records
from compilewatch.contract.failures import error_record, one_line
from compilewatch.contract.messages import encoded
from compilewatch.errors import CompilewatchError, UsageError
from compilewatch.extras.profiles import messages
from compilewatch.extras.profiles.messages import Prepared, Round
from compilewatch.extras.profiles.records import BatchPoint, InferenceOptions, OperatorStat
from compilewatch.extras.profiles.worker import measuring
from compilewatch.worker.example_inputs import make_inputs, summarize
from compilewatch.worker.example_inputs.sizes import rows_of, tokens_of, with_rows
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.model.shrink import PARAMETER_BUDGET
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.dynamo.capture import Capture, capture, unmeasured_guards
from compilewatch.worker.targets.dynamo.target import forward_of
from compilewatch.worker.targets.execution import mapped, observed, observed_in_float64

SEED = 0

REFERENCE_PARAMETERS = 500_000_000
"""A larger model is not copied in float64 to judge numbers: eager mode is the reference then."""


class Eager:
    """The model as it is. `function` is called on the inputs of `subject`."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.function: Callable[..., Any] = subject.module

    def first_call(self) -> None:
        """Compile and call."""
        self.call()

    def call(self) -> Any:
        """One call, finished when it returns."""
        inputs = self.subject.inputs
        with torch.no_grad():
            return self.function(*inputs.args, **inputs.kwargs)

    def observed(self) -> dict[str, Any]:
        """The results of one call by path, for a comparison with eager mode."""
        return observed(self.subject, self.function)

    def compiled(self, module: Any) -> Any:
        """Return how eager mode, or Inductor, calls a module with inputs of another shape."""
        return module

    def graphs(self) -> int | None:
        return None

    def breaks(self) -> tuple[records.GraphBreak, ...] | None:
        return None


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
        # These hold until the process ends.
        config.compile_threads = 1
        config.fallback_random = True
        prepare_tool_chain()
        self._cache = fresh_cache()
        self._cache.__enter__()

    def first_call(self) -> None:
        def call(optimized: Callable[..., Any]) -> None:
            self.function = optimized
            self.call()

        backend = torch._dynamo.lookup_backend("inductor")
        # Inductor marks each graph in a trace; dynamic shapes would be slower code.
        with unmeasured_guards():
            self.captured = capture(call, self.subject.module, backend=backend, dynamic=None)

    def compiled(self, module: Any) -> Any:
        return torch.compile(module)

    def graphs(self) -> int | None:
        return self.captured.graphs

    def breaks(self) -> tuple[records.GraphBreak, ...]:
        return self.captured.breaks(forward_of(self.subject.module))

    def ends(self, breaks: tuple[records.GraphBreak, ...]) -> dict[str, int]:
        """The index of the break at which the code of each compile id ends."""
        capture = self.captured
        ids = list(capture.reports)
        at = capture.ends(ids, breaks, forward_of(self.subject.module))
        ends = {name: index for name, index in zip(ids, at, strict=True) if index >= 0}
        first = next(iter(capture.frames), None)
        if first in ends and first not in capture.captured:
            # The model's own frame was given up: its code runs as Python, in no compiled frame.
            ends[measuring.NO_FRAME] = ends[first]
        return ends

    def forget(self) -> None:
        """Drop compiled code, but keep what the compiler cached on disk."""
        from torch._inductor.utils import clear_caches

        torch._dynamo.reset()
        clear_caches()


class Xla(Eager):
    """PyTorch/XLA on its CPU device: the graph is traced in each call, and run once it is whole."""

    def first_call(self) -> None:
        from compilewatch.worker.targets.xla.capture import on_device

        self.subject = on_device(self.subject)
        self.function = self.subject.module
        self.call()

    def call(self) -> Any:
        import torch_xla

        output = super().call()
        torch_xla.sync(wait=True)
        return output

    def observed(self) -> dict[str, Any]:
        return {
            name: value.cpu() if isinstance(value, torch.Tensor) else value
            for name, value in super().observed().items()
        }

    def graphs(self) -> int | None:
        from compilewatch.worker.targets.xla.capture import compiled_graphs

        return int(compiled_graphs())


CALLABLES: dict[str, type[Eager]] = {"eager": Eager, "inductor": Inductor, "xla": Xla}


def serve(request: records.Request) -> None:
    """Carry out the orders for the subject of a request in this folder, one after the other."""
    subject = ProfiledModel(request)
    with Path(messages.ORDERS).open("rb") as orders, Path(messages.REPLIES).open("wb") as replies:
        for line in orders:
            order = msgspec.json.decode(line, type=messages.Order)
            try:
                value = getattr(subject, order.step)(**order.options)
                reply = messages.StepReply(value=msgspec.Raw(encoded(value)))
            except BaseException as error:  # noqa: BLE001  (the worker's top)
                reply = messages.StepReply(failure=_failure(error, subject.phase))
            replies.write(encoded(reply) + b"\n")
            replies.flush()


def _failure(error: BaseException, phase: records.Phase) -> messages.ProfileFailure:
    code = error_record(error).code
    detail = str(error) if isinstance(error, CompilewatchError) else one_line(error)
    status = records.Status.OOM if code == "out_of_memory" else records.Status.ERROR
    no_device = phase is records.Phase.SETUP and isinstance(error, UsageError)
    if no_device or code in ("missing_package", "unknown_architecture"):
        status = records.Status.UNSUPPORTED
    return messages.ProfileFailure(status=status, phase=phase, detail=detail)


class ProfiledModel:
    """The state of one subject. `phase` is where it is, for the report of a failure.

    Its public methods are the steps of a profile: their arguments are the options of an order, and
    what they return is the reply. Most add figures to `point`. Errors of the model and of the
    compiler propagate. Its current folder gets the files of traces.
    """

    def __init__(self, request: records.Request) -> None:
        assert request.work is not None
        self.request = request
        self.options = msgspec.convert(request.work.options, InferenceOptions)
        self.folder = Path.cwd()
        self.phase = records.Phase.SETUP

    def prepare(self, *, target: str, batch_size: int) -> Prepared:
        """Build the model and its inputs; on a compiled target, also make a call in eager mode.

        `target` is `eager`, `inductor` or `xla`.
        """
        request, options = self.request, self.options
        self.batch_size = batch_size
        self.point = BatchPoint(batch_size=batch_size, status=records.Status.PASS)
        device = self._set_up()
        self.phase = records.Phase.CREATE
        dtype = getattr(torch, options.dtype)
        began = time.perf_counter()
        full = options.size == "full"
        built = build_model(request, None, budget=None if full else PARAMETER_BUDGET)
        module = built.module.eval().to(dtype).to(device)
        load_seconds = time.perf_counter() - began
        self.phase = records.Phase.INPUTS
        length = options.max_length
        inputs = make_inputs(module, request, None, batch=batch_size, length=length)
        # Rules make what they derive in the wanted size; the rows of own inputs are repeated.
        build, rows = request.model.build, rows_of(inputs)
        own = isinstance(build, records.FactoryBuild) and build.inputs is not None
        if rows not in (None, batch_size) and (own or request.inputs_file is not None):
            inputs, rows = with_rows(inputs, rows, batch_size), batch_size
        inputs = mapped(inputs, lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype))
        self.built = Subject(
            request=request,
            module=module,
            inputs=inputs,
            fake_mode=None,
            artifacts=self.folder,
            enter=lambda phase: setattr(self, "phase", phase),
        )
        self.target = CALLABLES[target](self.built)
        self.call = self._finished(self.target.call)
        if target != "eager":
            self.phase = records.Phase.EAGER
            with torch.no_grad():
                module(*inputs.args, **inputs.kwargs)
        parameters = list(module.parameters())
        can_generate = getattr(module, "can_generate", None)
        labels = getattr(built.config, "id2label", None)
        labels = labels if isinstance(labels, dict) else {}
        self._add(batch_size=rows or 1, load_seconds=load_seconds)
        return Prepared(
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            model_bytes=sum(t.numel() * t.element_size() for t in (*parameters, *module.buffers())),
            inputs=summarize(inputs),
            inputs_strategy=inputs.strategy,
            tokens_per_sample=tokens_of(inputs),
            is_fixed=rows != batch_size,
            generates=bool(can_generate()) if callable(can_generate) else False,
            labels=tuple(str(labels[key]) for key in sorted(labels, key=int)),
            device=torch.cuda.get_device_name(device) if self._on_gpu else "cpu",
        )

    def _set_up(self) -> torch.device:
        import numpy

        device = measuring.device_of(self.options.device)
        torch.set_num_threads(self.options.threads)
        random.seed(SEED)
        numpy.random.seed(SEED)
        torch.manual_seed(SEED)
        build = self.request.model.build
        if isinstance(build, records.ConfigBuild) and build.weights:
            import huggingface_hub.constants

            huggingface_hub.constants.HF_HUB_OFFLINE = False
        return device

    @property
    def _on_gpu(self) -> bool:
        return self.options.device == measuring.CUDA

    def _finished(self, call: Callable[[], object]) -> Callable[[], object]:
        return measuring.finished(call) if self._on_gpu else call

    def _add(self, **figures: object) -> BatchPoint:
        self.point = msgspec.structs.replace(self.point, **figures)
        return self.point

    def first_call(self, *, warmup: int) -> BatchPoint:
        """Compile, make the first call, and then `warmup` more."""
        seconds = self._compile(warmup)
        breaks = self.target.breaks()
        return self._add(
            first_call_seconds=seconds,
            graphs=self.target.graphs(),
            graph_breaks=sum(b.occurrences for b in breaks) if breaks is not None else None,
        )

    def recompile(self) -> BatchPoint:
        """Drop the compiled code and make a first call again, from filled caches on disk."""
        assert isinstance(self.target, Inductor)
        self.phase = records.Phase.COMPILE
        self.target.forget()
        return self._add(warm_first_call_seconds=self._compile())

    def _compile(self, warmup: int = 0) -> float:
        self.phase = records.Phase.COMPILE
        call = self._finished(self.target.first_call)
        began = time.perf_counter()
        call()
        seconds = time.perf_counter() - began
        for _ in range(warmup):
            self.call()
        self.phase = records.Phase.PROFILE
        return seconds

    def measure(self, *, runs: int, seconds: float) -> Round:
        """One round: `runs` calls, fewer if `seconds` are over; at least one."""
        return measuring.measure(self.call, runs, seconds)

    def memory(self) -> tuple[BatchPoint, str]:
        """The peak memory of one call alone, and how busy calls keep a CUDA device.

        With it comes a sentence on why that is not known, if so.
        """
        memory, share, note = measuring.peak_memory(self.call), None, ""
        if self._on_gpu:
            memory, share, note = measuring.used(self.call, memory)
        return self._add(memory=memory, device_utilization=share), note

    def compare(self) -> BatchPoint:
        """Compare the numbers of compiled code with those of eager mode."""
        self.phase = records.Phase.COMPARE
        module = self.built.module

        def assess(reference: Callable[[], dict[str, Any]] | None) -> records.Numerics:
            eager = lambda: observed(self.built, module)  # noqa: E731
            return numerics.assess(eager, self.target.observed, reference)

        compared = assess(None)
        small = sum(p.numel() for p in module.parameters()) <= REFERENCE_PARAMETERS
        if not compared.matches and small:  # only then is the cost of a reference worth it
            compared = assess(lambda: observed_in_float64(self.built))
        self.phase = records.Phase.PROFILE
        return self._add(numerics=compared)

    def segments(self, *, calls: int) -> BatchPoint:
        """Where a call spends its time, and what its graph breaks cost; from `calls` calls."""
        assert isinstance(self.target, Inductor)
        division = measuring.divided(self.call, calls)
        breaks = self.target.breaks()
        costs = division.costs(breaks, self.target.ends(breaks))
        return self._add(segments=division.segments(calls), breaks=costs)

    def trace(self, *, calls: int) -> tuple[OperatorStat, ...]:
        """Write `trace.json` and `stacks.txt` of `calls` calls; return the sums by operator."""
        return measuring.traced(self.call, calls, self.built.artifacts)

    def generate(self, *, tokens: int, runs: int) -> tuple[int, Round, Round]:
        """Generate greedily from the example inputs' ids; the first text is a warm-up.

        Each text is a call over the prompt (prefill), then `tokens` calls of one token each
        (decode). Compiled code adapts to a cache that grows in the first text, so later ones run
        without a compilation. Returns the tokens of the prompt, and the times of each prompt and of
        each token (mean of one text). Raises UsageError for a model that returns no cache.
        """
        ids = self.built.inputs.kwargs.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            raise UsageError("generation needs input_ids of two dimensions")
        call = self.target.compiled(self.built.module)
        with torch.no_grad():
            texts = [_text_times(call, ids, tokens) for _ in range(runs + 1)][1:]
        prefill, decode = (
            Round(
                wall_seconds=tuple(text[part][0] / count for text in texts),
                cpu_seconds=tuple(text[part][1] / count for text in texts),
            )
            for part, count in ((0, 1), (1, tokens))
        )
        return int(ids.shape[1]), prefill, decode

    @cached_property
    def _classifier(self) -> tuple[Any, list[str], Any]:
        """The tokenizer of the model, all texts, and what is called on them.

        Raises UsageError if the model has no tokenizer beside its weights.
        """
        from transformers import AutoTokenizer

        model = self.request.model
        assert isinstance(model.build, records.ConfigBuild)  # as it has weights
        where = str(model.build.repo)
        revision = None if Path(where).is_dir() else model.revision
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(where, revision=revision)
        except (OSError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise UsageError(f"{where} has no tokenizer that can be loaded: {first}") from None
        data = (self.folder / messages.TEXTS_FILE).read_bytes()
        texts = msgspec.json.decode(data, type=list[str])
        return tokenizer, texts, self.target.compiled(self.built.module)

    def classify(self, *, start: int, stop: int) -> tuple[list[int], float]:
        """Return the class with the largest logit of the texts `start` to `stop`, and the seconds.

        They include the tokenizer. Every batch has the same shape, so that code compiles once.
        """
        tokenizer, all_texts, call = self._classifier
        device = next(self.built.module.parameters()).device
        began = time.perf_counter()
        classes: list[int] = []
        for row in range(start, stop, self.batch_size):
            texts = all_texts[row : min(row + self.batch_size, stop)]
            encoded = tokenizer(
                texts + texts[-1:] * (self.batch_size - len(texts)),
                padding="max_length",
                truncation=True,
                max_length=self.options.max_length,
                return_tensors="pt",
            )
            with torch.no_grad():
                output = call(**encoded.to(device))
            logits = getattr(output, "logits", None)
            if not isinstance(logits, torch.Tensor) or logits.dim() != 2:
                raise UsageError("the model is no text classifier: it returns no class logits")
            classes += logits.argmax(-1).tolist()[: len(texts)]
        return classes, time.perf_counter() - began


def _text_times(call: Any, ids: torch.Tensor, tokens: int) -> list[tuple[float, float]]:
    """Wall and CPU seconds of the prompt of a text, and of all of its tokens."""

    def now() -> tuple[float, float]:
        if ids.is_cuda:  # when everything before has ended there as well
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    moments = [now()]
    output = call(input_ids=ids, use_cache=True)
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise UsageError("the model returns no cache, so its tokens cannot be timed apart")
    moments.append(now())
    for _ in range(tokens):
        ids = output.logits[:, -1:].argmax(-1)
        output = call(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
    moments.append(now())
    return [(end[0] - begin[0], end[1] - begin[1]) for begin, end in pairwise(moments)]
