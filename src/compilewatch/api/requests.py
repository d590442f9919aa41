"""One request, from a model's name and options."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import extras
from compilewatch.api.selection import described, one_model, split
from compilewatch.api.worker_client import check_backends, check_nested_graph_breaks
from compilewatch.config import Settings, load_settings
from compilewatch.environments import Environments
from compilewatch.errors import InputsError, UsageError
from compilewatch.plan import check_targets, options_of, place, plan, targets_of
from compilewatch.records import FactoryBuild, Mode, ModelSpec, Request, Target


def one_target(name: str, *, mode: str, dynamic: bool | None, settings: Settings) -> Target:
    """The target of a command about one target and one device.

    Raises UsageError for an unknown target, or for several devices.
    """
    if len(settings.devices) > 1:
        raise UsageError("this command is about one device: name one with --device")
    (target,) = targets_of(
        [name],
        [Mode(mode)],
        dynamic,
        settings.nested_graph_breaks,
        devices=settings.devices,
        dtype=settings.named_dtype,
    )
    check_targets([target])
    return target


def one_request(
    model: str,
    *,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    flags: dict[str, Any],
) -> tuple[Request, Settings]:
    """The request of a command about one model. `flags` override settings.

    Errors in the choice of the model or in a file of inputs are raised here, before a worker
    starts.
    """
    folders = tuple(flags.pop("python_path", ()))
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise UsageError(f"--python-path: the folder {missing[0]} does not exist")
    flags["devices"] = split(flags.pop("device", None))
    settings = load_settings(flags | {"environments": split(flags.get("environments"))})
    targets = [one_target(target, mode=mode, dynamic=dynamic, settings=settings)]
    spec = _one_spec(model, settings, folders)
    known = described([target.partition(":")[0]], settings)
    planned = options_of(settings, known)
    if inputs_file is not None and _names_callable(inputs_file):
        from compilewatch.sources.own import with_inputs

        spec = with_inputs(spec, inputs_file, _packages_of(settings))
    elif inputs_file is not None:
        _check_inputs(Path(inputs_file))
        path = str(Path(inputs_file).absolute())
        spec = msgspec.structs.replace(spec, inputs_file=path)
        planned = msgspec.structs.replace(planned, inputs_file=path)
    check_backends(targets, settings)
    check_nested_graph_breaks(targets, settings, asked=flags.get("nested_graph_breaks"))
    placed = place(targets, settings.environments, known)
    if len(placed) > 1:
        raise UsageError("this command uses one environment: name one with --environment")
    planned_request = plan([spec], placed, planned, named=bool(settings.environments))
    if planned_request.skipped:
        raise UsageError(f"{spec.name} is not run: {planned_request.skipped[0].detail}")
    return planned_request.requests[0], settings


def _names_callable(inputs: str) -> bool:
    return ":" in inputs and not Path(inputs).exists()


def _packages_of(settings: Settings) -> Path | None:
    """The folder of Transformers in the only environment that was named, None without one."""
    if len(settings.environments) != 1:
        return None
    return Environments(settings.cache_folder).transformers_folder(settings.environments[0])


def _one_spec(model: str, settings: Settings, folders: Sequence[Path]) -> ModelSpec:
    """The model of a command about one model. Raises UsageError if it cannot run here."""
    asked = settings.environments[0] if len(settings.environments) == 1 else None
    spec = one_model(settings, model, python_path=folders, environment=asked)
    if spec.source in extras.SANDBOXED:
        raise UsageError(
            f"{spec.name} is generated code, which only runs in the sandbox: use `compilewatch "
            "sweep --source papers`, `compilewatch papers check` or `compilewatch papers show`"
        )
    if folders and not isinstance(spec.build, FactoryBuild):
        raise UsageError("--python-path applies to your own models: ./FILE.py or MODULE:FACTORY")
    return spec


def _check_inputs(path: Path) -> None:
    """Raises InputsError if the file is missing, of another type, or not valid TOML."""
    if path.suffix not in (".toml", ".safetensors"):
        raise InputsError(f"{path}: a file of inputs must be a .toml or .safetensors file")
    try:
        data = path.read_bytes()
        if path.suffix == ".toml":
            tomllib.loads(data.decode())
    except OSError as error:
        raise InputsError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputsError(f"{path}: not a valid file of inputs: {error}") from None
