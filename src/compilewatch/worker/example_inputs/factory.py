"""Inputs of a user's own model: from the named callable, or else from its forward."""

from __future__ import annotations

from typing import Any

import torch

from compilewatch.errors import InputsError
from compilewatch.records import FactoryBuild
from compilewatch.worker.model.resolve import import_own
from compilewatch.worker.subject import ExampleInputs


def factory_inputs(build: FactoryBuild) -> ExampleInputs:
    """Call `build.inputs`: a tuple is args, a dict kwargs, `(args, kwargs)` both, a tensor one arg.

    Raises InputsError if the name is not found, the callable fails, or it returns something else.
    """
    name = build.inputs or ""
    module_name, _, attribute = name.partition(":")
    try:
        make = getattr(import_own(build, module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputsError(f"inputs {name!r}: cannot be found: {error}") from None
    try:
        returned = make()
    except Exception as error:  # the user's code may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputsError(f"inputs {name!r}: raised {reason}") from error
    args, kwargs = _split(name, returned)
    return ExampleInputs(strategy="factory", args=args, kwargs=kwargs)


def _split(name: str, returned: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(returned, torch.Tensor):
        return (returned,), {}
    if isinstance(returned, dict):
        return (), returned
    if isinstance(returned, tuple):
        if len(returned) == 2 and isinstance(returned[0], tuple) and isinstance(returned[1], dict):
            return returned
        return returned, {}
    raise InputsError(
        f"inputs {name!r}: returned {type(returned).__name__}; a tuple of args, a dict of "
        f"kwargs or (args, kwargs) is needed"
    )
