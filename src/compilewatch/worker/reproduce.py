"""Writes a script of plain PyTorch that shows a model's verdict without compilewatch.

The script builds the model as the real tier does (reduced size, seeded), so that it runs on any
machine, or on any with a CUDA device if the request is about one. It contains the configuration and
the inputs as source code.
"""

import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilewatch import records
from compilewatch.contract.messages import ARTIFACTS_FOLDER
from compilewatch.contract.targets import target_label
from compilewatch.errors import ConfigError
from compilewatch.worker import phases
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.model.libraries import library
from compilewatch.worker.model.resolve import adapter_config, base_of, build_model
from compilewatch.worker.targets.dynamo.capture import has_nested_graph_breaks
from compilewatch.worker.value_source import OBJECTS, has_objects, inputs_source

_IMPORTS = ("contextlib", "inspect", "json", "logging", "os", "re", "sys")

CAPTURE = r'''
breaks, graphs, frames, cut = {}, [], [], set()  # reports of breaks by compile id
given_up = 0


def untouched(function):
    """What a function returns in a fork, so that the model has not been called afterwards."""
    read, write = os.pipe()
    sys.stdout.flush()
    if os.fork() == 0:
        torch.set_num_threads(1)  # before threads of autograd race for the pool of a fork
        with contextlib.suppress(BaseException):
            os.write(write, json.dumps(function()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    os.wait()
    return json.loads(said) if said else None


class Trace(logging.Handler):
    """Receives the graph breaks that TORCH_TRACE logs."""

    def emit(self, record):
        metadata = getattr(record, "metadata", {})
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        if "dynamo_start" in metadata:
            frames.append(compile_id)
        elif metadata.get("artifact", {}).get("name") == "dynamo_graph_break_reason":
            stack = getattr(sys.exc_info()[1], "real_stack", None)
            stack = torch._guards.TracingContext.extract_stack() if stack is None else stack
            handled = not len(stack)  # it is about handling another report
            stack = [*torch._dynamo.exc.get_stack_above_dynamo(), *stack]
            text = str(getattr(record, "payload", "")).partition("Graph Break Reason: ")[2]
            breaks.setdefault(compile_id, []).append((place(stack), text, handled))


class GivenUp(logging.Filter):
    """Receives the frames that Dynamo runs in eager mode instead."""

    def filter(self, record):
        global given_up
        error = record.exc_info[1] if record.exc_info else None
        frame = re.match(r"WON'T CONVERT \S+ (.+) line (\d+)\s", str(record.msg))
        if error is not None and frame:
            given_up += 1
            compile_id = str(getattr(error, "compile_id", f"?/{given_up}"))
            where = place(getattr(error, "real_stack", None) or (), f"{base(frame[1])}:{frame[2]}")
            breaks.setdefault(compile_id, [(where, str(error), False)])
        return record.levelno >= logging.WARNING


def backend(graph, example_inputs):
    compile_id = str(torch._guards.CompileContext.current_compile_id())
    graphs.append(compile_id)
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        cut.add(compile_id)
    return torch._dynamo.lookup_backend(BACKEND)(graph, example_inputs)


def run(compiled):
    with torch.set_grad_enabled(TRAIN):
        output = compiled(*args, **kwargs)
    if TRAIN:
        loss = getattr(output, "loss", None)
        leaves = [v for v in tree_leaves(output) if torch.is_tensor(v) and v.requires_grad]
        loss = sum(v.float().mean() for v in leaves) if loss is None else loss
        if torch.is_tensor(loss):
            loss.backward()


def place(stack, otherwise=None):
    """The innermost line outside Dynamo, the calls of nn.Module and the standard library.

    Of what an import runs, it is the line that imports.
    """
    library, found = sysconfig.get_paths()["stdlib"], None
    for frame in reversed(stack):
        file = frame.filename
        if file == run.__code__.co_filename:
            break
        inside = file.startswith((library, "<frozen")) and "-packages" not in file
        calls = file.endswith("torch/nn/modules/module.py") and frame.name.endswith("_call_impl")
        if file.startswith("<frozen importlib"):
            found = None
        elif not found and not inside and not calls and "torch/_dynamo/" not in file:
            found = f"{base(file)}:{frame.lineno}"
    return found or otherwise or forward


class Operators(TorchDispatchMode):
    """Counts what PyTorch dispatches."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Operators.count += 1
        return func(*args, **(kwargs or {}))


def operators():
    MOVE
    with Operators():
        run(model)
    return Operators.count


def by_fullgraph():
    MOVE
    try:
        run(torch.compile(model, fullgraph=True, backend="eager"DYNAMIC))
        return ["accepted", ""]
    except Exception as error:
        return ["rejected", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"]


# Each of the three calls is the first one of the model.
fullgraph, rejection = untouched(by_fullgraph) or ("rejected", "the process ended")
ran = untouched(operators)
MOVE
code = inspect.unwrap(type(model).forward).__code__
base = os.path.basename
forward = f"{base(code.co_filename)}:{code.co_firstlineno}"
torch._logging._internal.trace_log.addHandler(Trace(logging.DEBUG))
convert = logging.getLogger("torch._dynamo.convert_frame")
convert.setLevel(logging.INFO)
convert.addFilter(GivenUp())
run(torch.compile(model, backend=backendDYNAMIC))

# A frame that was traced again and then cut broke at its last report.
counted, reported = sum(map(len, breaks.values())), set(breaks)
breaks = [each[-1 if key in cut and not each[-1][2] else 0] for key, each in breaks.items()]
places = Counter(where for where, _, _ in breaks)
counters = torch._dynamo.utils.counters
skipped = counters["frames"]["total"] - counters["frames"]["ok"]
silent = len(cut - reported) + max(skipped - given_up, 0)
places["?:0"] = max(silent, sum(counters["graph_break"].values()) - counted, 0)
if not +places and graphs != frames[:1] and ran != 0:
    places[forward] = 1  # Dynamo skipped the model's own frame
for number, (where, text, _) in enumerate(breaks, 1):
    lines = [line.strip() for line in text.splitlines() if "Encountered graph" not in line]
    print(f"graph break {number}: {where}: {next(filter(None, lines), '?')}")
if rejection:
    print(f"fullgraph=True: {rejection}")


def words(graphs, places, fullgraph):
    at = ", ".join(f"{where} ({times})" for where, times in sorted(places.items()))
    total = sum(places.values())
    counted = [f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((graphs, "graph"), (total, "break"))]
    return f"{', '.join(counted)}{' at ' * bool(at)}{at}, fullgraph {fullgraph}"


got = words(len(graphs), +places, fullgraph)
'''
"""Counts graphs and graph breaks as `worker.targets.dynamo` does, using only torch."""


def expected_source(result: records.Result) -> str:
    """The comparison with compilewatch's own capture of the same model and inputs."""
    if not result.is_verdict or result.graphs is None:
        first_line = (result.detail.splitlines() or [""])[0]
        verdict = f"no verdict, {result.status} in {result.phase}: {first_line}"
    else:
        verdict = f"{result.status}, {result.detail}" if result.probed else ""
    if verdict:
        return f'print("expected:", {verdict!r})\nprint("got:     ", got)'
    places: Counter[str] = Counter()
    for graph_break in result.breaks:
        place = f"{graph_break.file.rpartition('/')[2]}:{graph_break.line}"
        places[place] += graph_break.occurrences
    accepted = result.fullgraph is not None and result.fullgraph.accepted
    return (
        f"expected = words({result.graphs}, {dict(places)!r}, "
        f"{'accepted' if accepted else 'rejected'!r})\n"
        'print("expected:", expected)\nprint("got:     ", got)\n'
        "sys.exit(0 if got == expected else 1)"
    )


def captured(request: records.Request) -> records.Result:
    """The result of compilewatch for what the script evaluates: Dynamo with real tensors.

    A device is only declared, so its tensors are fake; if the model cannot run on them, the first
    break is looked for.
    """
    target = msgspec.structs.replace(request.target, name="dynamo", backend=None)
    real = request.device is None
    changed = msgspec.structs.replace(
        request,
        target=target,
        tier=records.Tier.REAL if real else records.Tier.AUTO,
        keep_artifacts=False,
    )
    tiers = (records.Tier.REAL,) if real else (records.Tier.FAKE, records.Tier.REAL)
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as folder:
        (Path(folder) / ARTIFACTS_FOLDER).mkdir()
        for tier in tiers:
            child = phases.evaluate(changed, tier, Path(folder), lambda _: None)
            if child.fake_failure is None:
                break
        return child.result


def at_written_depth(request: records.Request) -> records.Request:
    """The request at the depth at which a script can build its model: reduced, if possible.

    Raises ConfigError for a model of a library that no script builds.
    """
    build = request.model.build
    if not isinstance(build, records.LibraryBuild):
        return msgspec.structs.replace(request, depth=records.Depth.REDUCED)
    for depth in (records.Depth.REDUCED, records.Depth.FULL):
        if library(build.library).source(build, depth):
            return msgspec.structs.replace(request, depth=depth)
    raise ConfigError(
        f"{request.model.name}: no script is written for models of {build.library}, which are "
        "built from files: see `compilewatch explain`"
    )


def model_source(request: records.Request, module: torch.nn.Module, config: Any) -> list[str]:
    """Lines that build the model: its class with its configuration, or the factory's call."""
    build = request.model.build
    if isinstance(build, records.FactoryBuild):
        module_name, _, function = build.factory.partition(":")
        path = [f"sys.path[:0] = {list(build.python_path)!r}"] if build.path else []
        return [*path, f"from {module_name} import {function}", f"model = {function}()"]
    if isinstance(build, records.LibraryBuild):
        return library(build.library).source(build, request.depth) or []
    if config is None:
        name = type(module).__name__
        return [f"from {type(module).__module__} import {name}", f"model = {name}()"]
    if isinstance(build, records.ConfigBuild) and (build.weights or build.trust_remote_code):
        options = f"revision={request.model.revision!r}"
        options += ", trust_remote_code=True" if build.trust_remote_code else ""
        return [f"model = {type(module).__name__}.from_pretrained({build.repo!r}, {options})"]
    written = config.to_json_string(use_diff=True)
    # Some classes take entries out of what they read, so each reader gets settings of its own.
    if type(config).from_dict(json.loads(written)).to_dict() != config.to_dict():
        written = config.to_json_string(use_diff=False)
    text = json.dumps(json.loads(written), indent=2)
    model_class = type(base_of(module, request))
    return [
        f"from {type(config).__module__} import {type(config).__name__}",
        f"from {model_class.__module__} import {model_class.__name__}",
        "",
        f"config = {type(config).__name__}.from_dict(json.loads(r'''{text}'''))",
        f"model = {model_class.__name__}(config)",
        *adapter_source(request),
    ]


def adapter_source(request: records.Request) -> list[str]:
    """Lines that put the adapter on the model, if it has one."""
    adapter = adapter_config(request, records.Depth.REDUCED)
    if adapter is None:
        return []
    text = json.dumps(adapter, indent=2)
    return [
        "from peft import PeftConfig, get_peft_model",
        "",
        f"adapter = PeftConfig.from_peft_type(**json.loads(r'''{text}'''))",
        "model = get_peft_model(model, adapter)",
    ]


DEVICE = '''
def move(value):
    """A value with its tensors on the device, and what it says of its own device."""
    if torch.is_tensor(value):
        return value.to("cuda")
    is_object = hasattr(value, "__dict__") and not callable(value)
    for name, each in vars(value).items() if is_object else ():
        is_device = name.endswith("device") and str(each) == "cpu"
        vars(value)[name] = type(each)("cuda") if is_device else tree_map(move, each)
    return value


def move_all():
    """Move the model and its inputs. Not before the forks, which cannot use a device in use."""
    global model, args, kwargs
    if not hasattr(torch, "cuda") or not torch.cuda.is_available():
        print("this script needs a cuda device, and torch sees none here", file=sys.stderr)
        sys.exit(2)
    model = model.to("cuda")
    args, kwargs = tree_map(move, (args, kwargs))
'''


def dtype_source(module: torch.nn.Module) -> list[str]:
    """A line that converts the model to its type of weights, if that is not float32."""
    dtype = phases.dtype_of(module)
    return [f"model = model.to(torch.{dtype})"] if dtype not in (None, "float32") else []


def script(request: records.Request) -> str:
    """The complete script for one request (its tier should be `real`)."""
    request = at_written_depth(request)
    built = build_model(request, None)
    train = request.target.mode is records.Mode.TRAIN
    built.module.train(train)  # detectors take other inputs in train mode
    inputs = make_inputs(built.module, request, None)
    objects = has_objects(inputs)
    nested, chosen = request.target.nested_graph_breaks, request.target.dynamic
    is_set = nested is not None and has_nested_graph_breaks()  # off where torch has no setting
    dynamic = f", dynamic={chosen}" if chosen is not None else ""
    backend = "aot_eager_default_partitioner" if train else "eager"
    body = CAPTURE.replace("DYNAMIC", dynamic).replace("BACKEND", repr(backend))
    body = body.replace("TRAIN", str(train))
    move = "move_all()\n" if request.device is not None else ""
    body = re.sub(r"( *)MOVE\n", lambda indented: indented[1] + move if move else "", body)
    title = f"{request.model.name} on {target_label(request.target)}"
    lines = [
        f'"""{title}, in plain PyTorch {torch.__version__}."""',
        "",
        *(f"import {name}" for name in _IMPORTS),
        *(["import functools", "import importlib"] if objects else []),
        "import sysconfig",
        "from collections import Counter, OrderedDict, defaultdict",
        "",
        "import torch",
        "import torch._dynamo",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from torch.utils._pytree import tree_leaves, tree_map",
        "",
        "torch.set_num_threads(1)  # a fork has only the thread that forks",
        "torch.manual_seed(0)",
        *([f"torch._dynamo.config.nested_graph_breaks = {nested}"] if is_set else ()),
        *model_source(request, built.module, built.config),
        *dtype_source(built.module),
        "model.train()" if train else "model.eval()",
        *(OBJECTS.splitlines() if objects else ()),
        "",
        inputs_source(inputs),
        *(DEVICE.replace("cuda", request.device.kind).splitlines() if request.device else ()),
        body,
        expected_source(captured(request)),
        "",
    ]
    return "\n".join(lines)
