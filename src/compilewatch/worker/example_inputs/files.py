"""Example inputs in files, and their conversion: to an editable format, and to fake tensors.

A saved file is TOML with one table per argument, or safetensors. There is no pickle.

    [inputs.pixel_values]
    shape = [2, 3, 224, 224]
    dtype = "float32"
    fill = "normal"

A table contains either `value` (not a tensor), `none = true`, `values` (nested lists, with
`dtype`), or `shape` with `fill`: `normal`, `uniform` (in [0, 1)), `zeros`, `ones`, `randint` (with
`low`, `high`), or `full` (with `value`). Or it contains such tables: `items` (a list), `tuple`,
`entries` (a dictionary, by key) or `attributes` (an object such as a graph, by name). In overrides,
sizes may be expressions: products of numbers and names, such as
`"2*config.text_config.hidden_size"`.
"""

import copy
import re
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.errors import InputsError
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.subject import ExampleInputs

GRAPHS = "torch_geometric.data"

Resolve = Callable[[str], int] | None
"""Returns the size that a name in an expression means; None in files, which contain numbers."""

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bool, *_INTEGERS, *_FLOATS, torch.complex64)
}
CONTAINERS = ("items", "tuple", "entries", "attributes")
KEYS = frozenset({"shape", "dtype", "fill", "low", "high", "value", "values", "none", *CONTAINERS})
FILLS = frozenset({"normal", "uniform", "zeros", "ones", "randint", "full"})


def generator(name: str) -> torch.Generator:
    """Return a seeded generator for one argument, so that adding one changes no other."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def from_spec(name: str, spec: Any, resolve: Resolve, float_dtype: torch.dtype) -> Any:
    """Return the value that a table describes. `float_dtype` is the default of `dtype`.

    Raises InputsError that names the argument if the table does not have the format above.
    """
    if not isinstance(spec, dict):
        raise InputsError(f"{name}: expected a table with shape, values, items, entries or value")
    unknown = set(spec) - KEYS
    if unknown:
        raise InputsError(f"{name}: unknown {', '.join(sorted(unknown))}; known: {_known(KEYS)}")
    key = next((key for key in CONTAINERS if key in spec), None)
    if key is not None:
        content: Any = spec[key]
        is_list = key in ("items", "tuple")
        fits = isinstance(content, list if is_list else dict)
        if not fits:
            kind = "a list of tables" if is_list else "a table of tables"
            raise InputsError(f"{name}: {key} must be {kind}")
        if is_list:
            named = ((f"{name}[{i}]", inner) for i, inner in enumerate(content))
            values = [from_spec(n, inner, resolve, float_dtype) for n, inner in named]
            return tuple(values) if key == "tuple" else values
        entries = {
            k: from_spec(f"{name}.{k}", inner, resolve, float_dtype) for k, inner in content.items()
        }
        return attributes_object(entries) if key == "attributes" else entries
    dtype = spec.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise InputsError(f"{name}: unknown dtype {dtype!r}; known: {_known(DTYPES)}")
    if "values" in spec:
        try:
            return torch.tensor(spec["values"], dtype=DTYPES.get(dtype or ""))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputsError(f"{name}: values are not a tensor: {_line(error)}") from None
    if "shape" in spec:
        return _filled(name, spec, resolve, float_dtype)
    if "value" in spec:
        return spec["value"]
    if spec.get("none") is True:
        return None
    raise InputsError(f"{name}: needs one of shape, values, value, none, {', '.join(CONTAINERS)}")


def _filled(
    name: str, spec: dict[str, Any], resolve: Resolve, float_dtype: torch.dtype
) -> torch.Tensor:
    fill = spec.get("fill", "normal")
    if fill not in FILLS:
        raise InputsError(f"{name}: unknown fill {fill!r}; known: {_known(FILLS)}")
    if not isinstance(spec["shape"], list):
        raise InputsError(f"{name}: shape must be a list of sizes")
    shape = [size_of(name, size, resolve) for size in spec["shape"]]
    default = torch.int64 if fill == "randint" else float_dtype
    dtype = DTYPES.get(spec.get("dtype") or "", default)
    try:
        if fill == "randint":
            low = size_of(name, spec.get("low", 0), resolve)
            high = size_of(name, spec.get("high", 2), resolve)
            return torch.randint(low, high, shape, generator=generator(name)).to(dtype)
        if fill in ("normal", "uniform"):
            draw = torch.randn if fill == "normal" else torch.rand
            return draw(shape, generator=generator(name)).to(dtype)
        constant = {"zeros": 0, "ones": 1}.get(fill, spec.get("value", 0))
        return torch.full(shape, constant, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputsError(f"{name}: cannot be filled: {_line(error)}") from None


def size_of(name: str, size: Any, resolve: Resolve) -> int:
    """Return one size of a shape, from a number or a product such as `"batch*2"`."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise InputsError(f"{name}: {size!r} is not a size")
    product = 1
    for factor in map(str.strip, str(size).split("*")):
        if not factor.isdigit() and resolve is None:
            raise InputsError(f"{name}: {factor!r} is not a size; a file contains numbers")
        product *= int(factor) if factor.isdigit() or resolve is None else resolve(factor)
    return product


def _known(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def to_spec(name: str, value: Any) -> dict[str, Any]:
    """Return the table from which `from_spec` makes the same shapes and dtypes.

    Integers and masks keep their values; random floats become `normal`. Raises InputsError for a
    fake tensor of integers, which has no values to keep, and for other objects.
    """
    if isinstance(value, torch.Tensor):
        return _tensor_spec(name, value)
    if value is None:
        return {"none": True}
    if _is_plain(value):
        return {"value": value}
    if isinstance(value, (list, tuple)):
        key = "tuple" if isinstance(value, tuple) else "items"
        return {key: [to_spec(f"{name}[{i}]", v) for i, v in enumerate(value)]}
    entries = value if isinstance(value, dict) else attributes_of(value)
    if entries is not None and all(isinstance(k, str) for k in entries):
        key = "entries" if isinstance(value, dict) else "attributes"
        return {key: {k: to_spec(f"{name}.{k}", v) for k, v in entries.items()}}
    raise InputsError(f"{name}: a {type(value).__name__} cannot be written to a file")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(v) for v in value)
    return isinstance(value, (bool, int, float, str))


def _tensor_spec(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    spec: dict[str, Any] = {"shape": list(tensor.shape), "dtype": dtype}
    if isinstance(tensor, torch._subclasses.FakeTensor):
        if not tensor.dtype.is_floating_point:
            raise InputsError(f"{name}: a fake tensor has no values to write; make real inputs")
        return spec | {"fill": "normal"}
    if tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
        return spec | {"fill": "full", "value": tensor.flatten()[0].item()}
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or not tensor.numel():
        return spec | {"fill": "normal"}
    return {"dtype": dtype, "values": tensor.tolist()}


# --- objects with attributes, and the state of earlier calls --------------------------------------


def attributes_object(values: dict[str, Any]) -> Any:
    """Return an object with attributes: a graph if PyTorch Geometric is used, else a plain one."""
    geometric: Any = sys.modules.get(GRAPHS)
    return geometric.Data(**values) if geometric is not None else SimpleNamespace(**values)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of such an object, None for other values."""
    if isinstance(value, SimpleNamespace):
        return dict(vars(value))
    geometric: Any = sys.modules.get(GRAPHS)
    if geometric is not None and isinstance(value, geometric.Data):
        return dict(value.to_dict())
    return None


def fake_values(values: Any, mode: FakeTensorMode) -> Any:
    """Return nested values with each tensor made fake under a mode, which may keep values."""
    if isinstance(mode, InputAwareFakeMode):
        return converted(values, mode.known, mode.device)
    return converted(values, mode.from_tensor, torch.device("cpu"))


def converted(
    values: Any, convert: Callable[[torch.Tensor], torch.Tensor], device: torch.device
) -> Any:
    """Return nested values with each tensor converted, which puts it on `device`.

    An object that holds the state of earlier calls is copied, with its tensors converted and with
    what it says of its own device.
    """

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return convert(value)
        attributes = attributes_of(value)
        if isinstance(value, SimpleNamespace):
            return type(value)(**nested(attributes))
        if attributes is None and not holds_state(value):
            return value
        copied = copy.copy(value)
        for name, attribute in (attributes or {}).items():  # of a graph
            copied[name] = nested(attribute)
        for name, attribute in vars(value).items() if attributes is None else ():
            is_own_device = name.endswith("device") and str(attribute) == "cpu"
            vars(copied)[name] = (
                type(attribute)(str(device)) if is_own_device else nested(attribute)
            )
        return copied

    def nested(value: Any) -> Any:
        return torch.utils._pytree.tree_map(one, value)

    return nested(values)


def holds_state(value: Any) -> bool:
    """Whether a value is an object of Transformers with attributes, such as a cache or a session.

    Outputs of models are no such objects: they are containers of tensors.
    """
    kind = type(value)
    known = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    is_own = kind.__module__.partition(".")[0] == "transformers"
    return is_own and known is kind and hasattr(value, "__dict__")


def call(function: Callable[..., Any], values: dict[str, Any], mode: FakeTensorMode | None) -> Any:
    """Call a method of a model without gradients, with fake tensors if the model is fake."""
    if mode is not None:
        values = fake_values(values, mode)
    with torch.no_grad(), mode or nullcontext():
        return function(**values)


def to_fake(inputs: ExampleInputs, fake_mode: FakeTensorMode) -> ExampleInputs:
    """Return the same inputs with each tensor made fake under a mode."""
    given = (inputs.args, inputs.kwargs, inputs.generation)
    args, kwargs, generation = fake_values(given, fake_mode)
    return replace(inputs, args=args, kwargs=kwargs, generation=generation)


# --- files ----------------------------------------------------------------------------------------

SCHEMA = 1

NUMBERS = re.compile(r"\[\n((?:\s+[\w.+-]+,\n)+)\s*\]")
"""An array of plain values, as tomli_w writes it."""


class InputsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TOML format; `args` and `inputs` contain the tables above."""

    schema: int = SCHEMA
    strategy: str = "file"
    args: list[dict[str, Any]] = []
    inputs: dict[str, dict[str, Any]] = {}
    dynamic_shapes: dict[str, dict[str, str]] = {}


def load_inputs_file(path: Path) -> ExampleInputs:
    """Read `.toml` (specifications) or `.safetensors` (tensors as keyword arguments).

    Raises InputsError, in one line, for a file that is missing, malformed or of another format.
    """
    if path.suffix not in (".toml", ".safetensors"):
        raise InputsError(f"{path}: inputs are read from .toml or .safetensors files")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as tensors:
                kwargs = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputsError(f"{path}: not a safetensors file: {error}") from None
        return ExampleInputs(strategy="file", kwargs=kwargs)

    try:
        document = msgspec.convert(tomllib.loads(path.read_text("utf-8")), InputsFile)
        dynamic = {n: {int(d): s for d, s in v.items()} for n, v in document.dynamic_shapes.items()}
        if document.schema != SCHEMA:
            raise InputsError(f"schema {document.schema} is unknown; this version reads {SCHEMA}")
        specs = {f"args[{i}]": spec for i, spec in enumerate(document.args)} | document.inputs
        values = {n: from_spec(n, spec, None, torch.float32) for n, spec in specs.items()}
    except OSError as error:
        raise InputsError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputsError(f"{path}: not an inputs file: {error}") from None
    except InputsError as error:
        raise InputsError(f"{path}: {error}") from None
    args = tuple(values.pop(f"args[{i}]") for i in range(len(document.args)))
    return ExampleInputs(strategy="file", args=args, kwargs=values, dynamic_shapes=dynamic)


SKELETON = """
# {name} cannot be inferred: correct these lines and remove the "# " before them.
# [inputs.{name}]
# shape = [2, 8]
# dtype = "float32"
# fill = "normal"  # or "uniform", "zeros", "ones", "randint" (with low = 0, high = 10)
"""


def inputs_to_toml(inputs: ExampleInputs, unknown: Iterable[str] = ()) -> str:
    """Return real inputs as TOML, from which the same shapes and dtypes can be read.

    Each argument in `unknown` follows as a comment to fill in. Raises InputsError for values that a
    file cannot contain (see `to_spec`).
    """
    document: dict[str, Any] = {"schema": SCHEMA, "strategy": inputs.strategy}
    if inputs.args:
        document["args"] = [to_spec(f"args[{i}]", v) for i, v in enumerate(inputs.args)]
    document["inputs"] = {name: to_spec(name, v) for name, v in inputs.kwargs.items()}
    if inputs.dynamic_shapes:
        document["dynamic_shapes"] = {
            name: {str(d): label for d, label in dims.items()}
            for name, dims in inputs.dynamic_shapes.items()
        }
    # tomli_w gives each number a line of its own; a person edits rows.
    known = NUMBERS.sub(
        lambda array: f"[{', '.join(array[1].replace(',', ' ').split())}]", tomli_w.dumps(document)
    )
    return known + "".join(SKELETON.format(name=name) for name in unknown)
