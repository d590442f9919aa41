"""Saved example inputs: an editable TOML file, or tensors in a safetensors file. No pickle."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.errors import InputsError
from compilewatch.worker.example_inputs.fakes import fake_values
from compilewatch.worker.example_inputs.specs import from_spec, to_spec
from compilewatch.worker.subject import ExampleInputs

SCHEMA = 1

NUMBERS = re.compile(r"\[\n((?:\s+[\w.+-]+,\n)+)\s*\]")
"""An array of plain values, as tomli_w writes it."""


class InputsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TOML format; `args` and `inputs` contain the tables of `specs`."""

    schema: int = SCHEMA
    strategy: str = "file"
    args: list[dict[str, Any]] = []
    inputs: dict[str, dict[str, Any]] = {}
    dynamic_shapes: dict[str, dict[str, str]] = {}


def load_inputs_file(path: Path, fake_mode: FakeTensorMode | None) -> ExampleInputs:
    """Read `.toml` (specifications) or `.safetensors` (tensors as keyword arguments).

    Raises InputsError, in one line, for a file that is missing, malformed or of another format.
    """
    if path.suffix == ".toml":
        inputs = _load_toml(path)
    elif path.suffix == ".safetensors":
        inputs = _load_safetensors(path)
    else:
        raise InputsError(f"{path}: inputs are read from .toml or .safetensors files")
    return inputs if fake_mode is None else to_fake(inputs, fake_mode)


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
    file cannot contain (see `specs.to_spec`).
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
    known = NUMBERS.sub(_on_one_line, tomli_w.dumps(document))
    return known + "".join(SKELETON.format(name=name) for name in unknown)


def _on_one_line(array: re.Match[str]) -> str:
    return "[" + ", ".join(array[1].replace(",", " ").split()) + "]"


def to_fake(inputs: ExampleInputs, fake_mode: FakeTensorMode) -> ExampleInputs:
    """Return the same inputs with each tensor made fake under a mode."""
    return replace(
        inputs,
        args=fake_values(inputs.args, fake_mode),
        kwargs=fake_values(inputs.kwargs, fake_mode),
    )


def _load_toml(path: Path) -> ExampleInputs:
    try:
        document = msgspec.convert(tomllib.loads(path.read_text("utf-8")), InputsFile)
        dynamic = {n: {int(d): s for d, s in v.items()} for n, v in document.dynamic_shapes.items()}
    except OSError as error:
        raise InputsError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputsError(f"{path}: not an inputs file: {error}") from None
    if document.schema != SCHEMA:
        raise InputsError(
            f"{path}: schema {document.schema} is unknown; this version reads {SCHEMA}"
        )
    try:
        args = tuple(_spec(f"args[{i}]", s) for i, s in enumerate(document.args))
        kwargs = {name: _spec(name, spec) for name, spec in document.inputs.items()}
    except InputsError as error:
        raise InputsError(f"{path}: {error}") from None
    return ExampleInputs(strategy="file", args=args, kwargs=kwargs, dynamic_shapes=dynamic)


def _spec(name: str, spec: dict[str, Any]) -> Any:
    return from_spec(name, spec, _no_names(name), torch.float32)


def _no_names(argument: str) -> Any:
    def resolve(size: str) -> int:
        raise InputsError(f"{argument}: {size!r} is not a size; a file contains numbers")

    return resolve


def _load_safetensors(path: Path) -> ExampleInputs:
    try:
        with safe_open(path, framework="pt") as tensors:
            kwargs = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputsError(f"{path}: not a safetensors file: {error}") from None
    return ExampleInputs(strategy="file", kwargs=kwargs)
