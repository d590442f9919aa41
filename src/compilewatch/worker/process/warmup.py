"""Imports and first calls that are paid once, in the server, instead of in every child."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterable, Sequence

from compilewatch.contract.targets import entry

MODULES = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._decomp.decompositions",
    "torch._refs",
    "torch._meta_registrations",
    "torch.fx.experimental.symbolic_shapes",
    "sympy",
    "numpy",
    "tomllib",
    "huggingface_hub",
    "safetensors.torch",
    "transformers",
    "transformers.cache_utils",
    "transformers.generation.candidate_generator",
    "transformers.generation.stopping_criteria",
    "transformers.generation.utils",
    "transformers.image_processing_utils",
    "transformers.initialization",
    "transformers.integrations.sdpa_attention",
    "transformers.masking_utils",
    "transformers.modeling_layers",
    "transformers.modeling_outputs",
    "transformers.modeling_rope_utils",
    "transformers.modeling_utils",
    "transformers.models.auto",
    "transformers.tokenization_python",
    "transformers.tokenization_utils_tokenizers",
    "transformers.video_processing_utils",
    "compilewatch.worker.model.chaos",
    "compilewatch.worker.process.child",
    "compilewatch.worker.model.construct",
    "compilewatch.worker.example_inputs",
    "compilewatch.worker.model.resolve",
    "compilewatch.worker.model.overrides",
    "compilewatch.worker.model.depth",
    "compilewatch.worker.subject",
    "compilewatch.worker.targets.dynamo.target",
)
"""Imported in order. One that this environment lacks is left out: a child that needs it says so."""

MODULES_OF_EACH = ("torch._dynamo", *(m for m in MODULES if m.startswith("compilewatch.")))

TRACED_MODULES = (
    "torch.nn.modules.activation",
    "torch.nn.modules.container",
    "torch.nn.modules.conv",
    "torch.nn.modules.dropout",
    "torch.nn.modules.linear",
    "torch.nn.modules.module",
    "torch.nn.modules.normalization",
    "torch.nn.modules.sparse",
    "transformers.activations",
    "transformers.cache_utils",
    "transformers.integrations.sdpa_attention",
    "transformers.masking_utils",
    "transformers.modeling_utils",
)
"""What the graphs of most models have nodes of. Dynamo tokenizes the file of each node to name its
function (torch/_dynamo/funcname_cache.py, torch 2.13 to 2.15), a tenth of a small model's capture.
"""


def warm_up(targets: Iterable[str] = (), *, single: bool = False) -> None:
    """Import torch and transformers, compile something tiny, and leave no trace of it.

    `targets` are those that children will be asked about. Only torch itself must work; a failure of
    the rest goes to stderr and costs speed, not answers. For a `single` request only what every
    request needs is imported: the rest is worth it where many children share it.
    """
    import_modules(targets, MODULES_OF_EACH if single else None)
    try:
        _fix_verbosity()
        _start_autograd()
        if not single:
            _name_functions()
            compile_something()
    except Exception:  # noqa: BLE001  (a broken compiler is a finding of the children)
        sys.stderr.write("warm-up: the first compile failed\n")
        traceback.print_exc()


def import_modules(targets: Iterable[str] = (), modules: Sequence[str] | None = None) -> None:
    """Import what a request on one of `targets` needs. Raises only where torch itself fails.

    `modules` are imported instead of all that many requests share.
    """
    import torch

    torch.set_num_threads(1)
    _keep_single_threaded()
    warm = MODULES if modules is None else modules
    for name in (*warm, *(m for t in targets for m in entry(t).warm_up if modules is None)):
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  (foreign packages: whatever they raise at import)
            sys.stderr.write(f"warm-up: {name} cannot be imported\n")
            traceback.print_exc()


def _keep_single_threaded() -> None:
    """A first progress bar starts a monitor thread, and AOTAutograd draws one."""
    with contextlib.suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]

        tqdm.monitor_interval = 0


def _start_autograd() -> None:
    """Run a first backward before the first `FakeTensorMode`, so that autograd starts no threads.

    Autograd starts one thread for each device that it sees at its first backward. A CUDA build
    without a device sees none, until `FakeTensorMode` installs a guard for CUDA that reports eight
    (`torch._C._ensureCUDADeviceGuardSet`, torch 2.13 and 2.15).
    """
    import torch

    torch.ones((), requires_grad=True).backward()


def _fix_verbosity() -> None:
    """Have `config.verbose` be a plain attribute: Dynamo reads it at each bytecode instruction.

    Its configuration computes every value anew (torch 2.13), which for this one alone takes 3 % of
    a capture. TORCHDYNAMO_VERBOSE still holds.
    """
    from torch._dynamo import config

    vars(config)["verbose"] = config.verbose


def _name_functions() -> None:
    from torch._dynamo import funcname_cache

    for name in TRACED_MODULES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            funcname_cache.get_funcname(file, 1)


def compile_something() -> None:
    """Take the paths whose modules, tables and caches are made at first use."""
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    def tiny() -> tuple[nn.Module, torch.Tensor]:
        module = nn.Sequential(nn.Embedding(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())
        return module, torch.zeros(2, 4, dtype=torch.long)

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        module, tokens = tiny()
        torch.compile(module, backend="eager")(tokens)
        torch._dynamo.explain(module)(tokens)
    torch._dynamo.reset()
    # Real ones: AOTAutograd of torch 2.9 refuses fake tensors of another mode than Dynamo's own.
    module, tokens = tiny()
    captured = torch.compile(module.train(), backend="aot_eager_default_partitioner")
    captured(tokens).sum().backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
