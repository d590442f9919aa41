"""Writes a script that calls one model with many sizes in plain PyTorch; see check_shapes.py.

Reads a request from standard input, in an interpreter with the library of the model, and prints
JSON: the sizes of the calls in each trace, and the script. Of compilewatch, the script has only
the construction of the model and the inputs, as source.
"""

import json
import sys
from pathlib import Path

import msgspec
import torch

from compilewatch.records import Request, Tier
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.example_inputs.sizes import inputs_of, sizes_of
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.reproduce import at_written_depth, dtype_source, model_source
from compilewatch.worker.subject import Subject
from compilewatch.worker.value_source import OBJECTS, has_objects, inputs_source

TEN = ((1, 16), (2, 16), (2, 17), (8, 17), (3, 128), (1, 128), (64, 32), (5, 100), (1, 1), (7, 512))
BATCHES = tuple((batch, 0) for batch in (2, 3, 8, 64))
SEQUENCES = ((2, 16), (2, 17), (2, 128), (1, 40), (2, 250))
"""Batch and sequence of each call: all sorts; growing batches; sequences, and one batch of 1."""

BODY = '''
class Recompiles(logging.Handler):
    """Receives what TORCH_LOGS=recompiles writes."""

    def emit(self, record):
        messages.append((len(graphs) + 1, record.getMessage()))


def series(trace, dynamic):
    compiled = torch.compile(model, backend="eager", dynamic=dynamic)
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
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return {"graphs": graphs, "messages": messages, "errors": errors}


graphs, messages, errors, answers = [], [], [], {}
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


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    request = at_written_depth(msgspec.structs.replace(request, tier=Tier.REAL))
    channel, sys.stdout = sys.stdout, sys.stderr  # model code prints
    built = build_model(request, None)
    built.module.eval()
    inputs = make_inputs(built.module, request, None)
    subject = Subject(
        request=request,
        module=built.module,
        inputs=inputs,
        fake_mode=None,
        artifacts=Path(),
        enter=lambda _: None,
    )
    known = sizes_of(subject)
    traces: dict[str, list[dict[str, int]]] = {}
    for name, trace in (("ten", TEN), ("batches", BATCHES), ("sequences", SEQUENCES)):
        calls = [dict(zip(("batch", "sequence"), sizes, strict=True)) for sizes in trace]
        traces[name] = [
            {name: size for name, size in sizes.items() if size and name in known}
            for sizes in calls
        ]
    texts = {
        name: [inputs_source(inputs_of(subject, sizes)) for sizes in calls]
        for name, calls in traces.items()
    }
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
            OBJECTS if has_objects(inputs) else "",
            f"TRACES = {texts!r}",
            BODY,
        )
    )
    torch.set_num_threads(1)
    channel.write(json.dumps({"traces": traces, "script": script}))


if __name__ == "__main__":
    main()
