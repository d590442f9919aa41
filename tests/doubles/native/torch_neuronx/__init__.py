"""A double of torch_neuronx 2.14 (TorchNeuron): a device `neuron`, and a backend of that name.

Documented surface: Neuron SDK 2.33 and the public beta of the package, as the target's `native.py`
lists it. A tensor on the device is a plain one whose storage has its bytes on the CPU, where every
operator runs. The backend compiles by AOTAutograd; what goes to neuronx-cc (found on PATH) is the
graph as text, and a compiled graph runs its operators one by one. As in the real one, the error of
the compiler comes late: at the next call that waits for the device. `torch.tensor(…, device=…)`
fails while Dynamo traces it, as users report of the real one. Tests choose what happens by

    NEURON_DOUBLE_CORES     how many devices there are (neuron-ls reads it too)
    NEURON_DOUBLE           what neuronx-cc does; tests/doubles/bin/neuronx-cc
    NEURON_DOUBLE_OFF_BY    what is added to the results of compiled graphs
    NEURON_DOUBLE_SWITCHES  "ignored": a graph without a NEFF runs in eager mode, as in the beta
    NEURON_DOUBLE_LACKS     documented names that it does not have
"""

import hashlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils import backend_registration
from torch.utils._pytree import tree_map, tree_map_only

__version__ = "2.14.3.0.0"
NO_KERNEL = ("aten::normal_", "aten::histc")
NO_LOWERING = ("aten.histc.default",)

_fallback: list[str] = []
_metrics: list["NeuronCompilationMetrics"] = []
_late: list[Exception] = []
_state = {"runtime": 0, "inside": False}


class NEFFCompilationError(Exception):
    """neuronx-cc made no NEFF."""


class MLIRError(Exception):
    """torch-mlir has no lowering."""


@dataclass
class NeuronCompilationMetrics:
    graph_id: str
    graph_name: str
    graph_node_count: int
    timestamp: str
    torch_neuronx_fx_passes_us: int = 10
    torch_neuronx_lower_us: int = 20
    torch_neuronx_compile_us: int = 0


def _on(name: str, default: str = "0") -> bool:
    return os.environ.get(name, default) == "1"


def device_count() -> int:
    return int(os.environ.get("NEURON_DOUBLE_CORES", "0"))


def is_available() -> bool:
    return device_count() > 0 or _on("TORCH_NEURONX_COMPILE_ONLY")


def synchronize() -> None:
    if _late:
        raise _late.pop(0)


def get_dynamo_metrics() -> list[NeuronCompilationMetrics]:
    synchronize()
    return list(_metrics)


get_fallback_ops, clear_op_tracking = _fallback.copy, _fallback.clear
reset_dynamo_metrics = _metrics.clear


class _Module(backend_registration._DummyBackendModule):
    """`torch.neuron`."""

    is_available = staticmethod(is_available)
    device_count = staticmethod(device_count)
    synchronize = staticmethod(synchronize)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


def _start_runtime() -> None:
    """At the first tensor; no process that is forked afterwards may use the device."""
    if not is_available():
        raise RuntimeError("nrt_init failed with NRT_FAILURE: no Neuron device")
    if _state["runtime"] not in (0, os.getpid()):
        raise RuntimeError("Cannot re-initialize Neuron in forked subprocess: use spawn")
    _state["runtime"] = os.getpid()


@torch.compiler.disable
def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU, on tensors that share the storages of the device's ones."""
    _start_runtime()
    storages: dict[int, Any] = {}
    tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def down(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "neuron" else value
        if not isinstance(value, torch.Tensor) or value.device.type != "neuron":
            return value
        own: Any = value.untyped_storage()
        host = torch.empty(0, dtype=value.dtype)
        host.set_(own.host, value.storage_offset(), value.size(), value.stride())
        storages[own.host._cdata] = own
        tensors[id(host)] = (host, value)
        return host

    def up(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        same = tensors.get(id(value))
        made = same[1] if same else torch._C._acc.create_empty_tensor([0], value.dtype)
        host: Any = value.untyped_storage()
        own: Any = storages.setdefault(host._cdata, made.untyped_storage())
        own.host = host
        place = (value.storage_offset(), value.size(), value.stride())
        # On the device there are no bytes: this only says where they would be.
        meta = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
        return torch.ops.aten.set_.source_Storage_storage_offset.redispatch(meta, made, own, *place)

    name = str(op.name()).partition(".")[0]
    if name == "aten::_copy_from":  # to the device, from it, or on it
        source, target = args[:2]
        if target.device.type == "cpu":
            synchronize()
        down(target).copy_(down(source))
        return target
    if name in NO_KERNEL and not _state["inside"]:
        _fallback.append(name)
    args, kwargs = tree_map(down, (args, kwargs))
    return tree_map(up, op(*args, **kwargs))


def neuron_backend(gm: Any, example_inputs: Any, *, options: Any = None, mode: Any = None) -> Any:
    """What `torch.compile(backend="neuron")` calls."""
    if any(isinstance(value, torch.SymInt) for value in example_inputs):
        raise RuntimeError("DynamicShapeAnalysis: the Neuron backend needs static shapes")

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        try:
            return _compiled(graph)
        except Exception as error:
            text = f"Neuron backend NEFF execution setup failed with unexpected error: {error}"
            raise RuntimeError(text) from error

    backend = aot_autograd(fw_compiler=compiler, keep_inference_input_mutations=True)
    return backend(gm, example_inputs)


def _compiled(graph: torch.fx.GraphModule) -> Any:
    for node in graph.graph.nodes:
        if str(node.target) in NO_LOWERING:
            raise MLIRError(_illegal(node))
    text = "\n".join(node.format_node() or "" for node in graph.graph.nodes)
    name, stamp = "model_default", str(time.monotonic_ns())
    metrics = NeuronCompilationMetrics(
        graph_id=hashlib.sha256(text.encode()).hexdigest(),
        graph_name=f"{name}_{get_aot_graph_name().partition('__')[2]}",
        graph_node_count=len(graph.graph.nodes),
        timestamp=stamp,
    )
    folder = Path(os.environ.get("TORCH_NEURONX_DEBUG_DIR", "/tmp/neuron_backend"))
    source = folder / "stablehlo" / "proc_0" / f"{name}_{stamp}.stablehlo.mlir"
    neff = folder / "neff" / "proc_0" / f"{name}_{stamp}.neff"
    for path in (source, neff):
        path.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    problem = _neff(source, neff, metrics)
    if problem is not None:
        _late.append(problem)
    if not _on("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS"):
        shutil.rmtree(folder)
    _metrics.append(metrics)

    def run(*given: Any) -> Any:
        if any(value.device.type == "cpu" for value in given) and _on(
            "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"
        ):
            raise RuntimeError("Input tensor at index 0 is on cpu device")
        given = tuple(value.to("neuron") for value in given)
        ignored = os.environ.get("NEURON_DOUBLE_SWITCHES") == "ignored"
        if problem and (ignored or not _on("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")):
            _late.clear()  # only a line of its log says so
            return graph.forward(*given)
        _state["inside"] = True
        try:
            outputs = graph.forward(*given)
        finally:
            _state["inside"] = False
        off = float(os.environ.get("NEURON_DOUBLE_OFF_BY", "0"))
        if _on("TORCH_NEURONX_COMPILE_ONLY"):  # nothing is executed: there are no values
            return tree_map_only(torch.Tensor, torch.zeros_like, outputs)
        return tree_map_only(torch.Tensor, lambda v: v + off, outputs) if off else outputs

    return make_boxed_func(run)


def _illegal(node: torch.fx.Node) -> str:
    """As torch-mlir says it, with the line of the model."""
    frames = re.findall(r'File "(.+)", line (\d+)', node.meta.get("stack_trace") or "")
    file, line = frames[-1] if frames else ("?", 0)
    name = str(node.target).removesuffix(".default")
    return (
        f'Failure while executing pass pipeline:\nerror: "{file}":{line}:0: failed to legalize '
        "operation 'torch.operator' that was explicitly marked illegal\n"
        f' note: see current operation: %5 = "torch.operator"(%arg0) <{{name = "torch.{name}"}}> : '
        "(!torch.vtensor<[3,4],f32>) -> !torch.vtensor<[10],f32>"
    )


def _neff(source: Path, output: Path, metrics: NeuronCompilationMetrics) -> Exception | None:
    """Compile, unless the cache has it. Returns the error, which is raised later."""
    cache = Path(os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR", "/tmp/neff_cache"))
    entry = cache / f"{metrics.graph_id}.neff"
    if entry.is_file():
        shutil.copyfile(entry, output)
        return None
    target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2" if device_count() else "none")
    command = ["neuronx-cc", "compile", str(source), "--framework", "XLA", "--target", target]
    command += ["--model-type", "transformer", "--auto-cast=none", "-O", "1"]
    started, where = time.monotonic(), source.parent
    done = subprocess.run(
        [*command, "--output", str(output)], capture_output=True, text=True, cwd=where, check=False
    )
    if done.returncode:
        return NEFFCompilationError(
            f"NEFF compilation failed with return code {done.returncode}, "
            f"Command: {' '.join(command)}, Error: {done.stderr}"
        )
    metrics.torch_neuronx_compile_us = int(1e6 * (time.monotonic() - started))
    cache.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(output, entry)
    return None


_autoload = synchronize  # what `import torch` calls, unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0

backend_registration._setup_privateuseone_for_python_backend("neuron", _Module())
_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, "PrivateUse1")
for _name in filter(None, os.environ.get("NEURON_DOUBLE_LACKS", "").split(",")):
    del globals()[_name]
