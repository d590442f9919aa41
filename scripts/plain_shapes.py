"""Calls models with many sizes, and writes a plain script that does; see check_shapes.py.

Runs in an interpreter with the libraries of the models; reads a request a line from standard input,
and answers with a line of JSON. Of compilewatch, the script has only the construction of the model
and the inputs, as source. A model is called on fake tensors, as `compilewatch shapes` does, and by
the script on real ones of reduced width.
"""

import os
import sys
from functools import partial
from pathlib import Path

import msgspec

from compilewatch.contract.failures import one_line
from compilewatch.records import Record, Request, ShapeSeries, Tier
from compilewatch.worker import forked
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.example_inputs.sizes import BATCH, SEQUENCE, inputs_of, sizes_of
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.process import warmup
from compilewatch.worker.reproduce import at_written_depth, dtype_source, model_source
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.series import series
from compilewatch.worker.value_source import OBJECTS, has_objects, inputs_source

TEN = ((1, 16), (2, 16), (2, 17), (8, 17), (3, 64), (1, 64), (16, 32), (5, 50), (1, 1), (7, 100))
BATCHES = tuple((batch, 0) for batch in (2, 3, 8, 16))
SEQUENCES = ((2, 16), (2, 17), (2, 64), (1, 40), (2, 100))
"""Batch and sequence of each call: all sorts; growing batches; sequences, and one batch of 1."""

BODY = '''
class Recompiles(logging.Handler):
    """Receives what TORCH_LOGS=recompiles writes."""

    def emit(self, record):
        messages.append((len(graphs) + 1, record.getMessage()))


def backend(module, inputs):
    received.append(module)
    return module.forward


def series(trace, dynamic):
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    for text in trace:
        scope = dict(globals())
        exec(text, scope)
        torch._dynamo.utils.counters.clear()
        try:
            with torch.no_grad():
                compiled(*scope["args"], **scope["kwargs"])
            errors.append("")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        counted.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        graphs.append(len(received))
        received.clear()
    return {"graphs": graphs, "counted": counted, "messages": messages, "errors": errors}


graphs, counted, received, messages, errors, answers = [], [], [], [], [], {}
torch._logging.set_logs(recompiles=True)
logging.getLogger("torch._dynamo.guards.__recompiles").addHandler(Recompiles(logging.DEBUG))
for name, trace in TRACES.items():
    for dynamic in (None, True):
        read, write = os.pipe()
        if os.fork() == 0:
            torch.set_num_threads(1)
            with os.fdopen(write, "w") as stream:
                stream.write(json.dumps(series(trace, dynamic)))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as stream:
            answers[f"{name} {dynamic}"] = json.loads(stream.read())
        os.wait()
print("\\n" + json.dumps(answers))
'''


class Answer(Record, frozen=True, kw_only=True):
    """Of one model: `ten None` -> what compilewatch says; and the script. Or why there is none."""

    series: dict[str, ShapeSeries] = msgspec.field(default_factory=dict)
    script: str = ""
    error: str = ""


def answer(request: Request) -> Answer:
    request = at_written_depth(msgspec.structs.replace(request, tier=Tier.REAL))
    real = subject_of(request, None)
    known = sizes_of(real)
    traces: dict[str, list[dict[str, int]]] = {}
    for name, trace in (("ten", TEN), ("batches", BATCHES), ("sequences", SEQUENCES)):
        named = (zip((BATCH, SEQUENCE), sizes, strict=True) for sizes in trace)
        traces[name] = [{n: size for n, size in one if size and n in known} for one in named]
    texts = {
        name: [inputs_source(inputs_of(real, sizes)) for sizes in calls]
        for name, calls in traces.items()
    }
    built = build_model(request, None)
    script = "\n".join(
        (
            "import contextlib, functools, importlib, json, logging, os, sys",
            "from collections import OrderedDict, defaultdict",
            "import torch",
            "import torch._dynamo",
            "torch.set_num_threads(1)",
            "torch.manual_seed(0)",
            *model_source(request, built.module, built.config),
            *dtype_source(built.module),
            "model.eval()",
            OBJECTS if has_objects(real.inputs) else "",
            f"TRACES = {texts!r}",
            BODY,
        )
    )
    fake = subject_of(request, InputAwareFakeMode())

    def called(calls: list[dict[str, int]], dynamic: bool | None) -> ShapeSeries:
        inputs = [inputs_of(fake, sizes) for sizes in calls]
        with series(fake, dynamic=dynamic) as compiled:
            for sizes, call_inputs in zip(calls, inputs, strict=True):
                compiled.call(sizes, call_inputs)
            return compiled.record()

    found = {
        f"{name} {dynamic}": forked.in_fork(partial(called, calls, dynamic), ShapeSeries)
        for name, calls in traces.items()
        for dynamic in (None, True)
    }
    return Answer(series=found, script=script)


def subject_of(request: Request, fake_mode: InputAwareFakeMode | None) -> Subject:
    maker = build_model(request, fake_mode).module.eval()
    return Subject(
        request=request,
        module=build_model(request, fake_mode).module.eval(),
        inputs=make_inputs(maker, request, fake_mode),
        fake_mode=fake_mode,
        artifacts=Path(),
        enter=lambda _: None,
        maker=maker,
    )


def main() -> None:
    channel = os.dup(1)
    os.dup2(2, 1)  # model code prints
    warmup.warm_up()
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        try:
            found = forked.in_fork(partial(answer, request), Answer)
        except Exception as error:  # noqa: BLE001  (whatever a model raises)
            found = Answer(error=one_line(error))
        os.write(channel, msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main()
