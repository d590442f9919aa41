"""PEFT adapters: made from their configuration on a model that was built without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from compilewatch.files import read_json_object
from compilewatch.records import ConfigBuild, Depth, Mode, Request
from compilewatch.worker.model.construct import Construct

NAMED_LAYERS = ("layers_to_transform", "layer_replication")
"""Fields that name layers by their index. A reduced model lacks most of these layers."""

FROM_WEIGHTS = ("init_lora_weights", "init_weights")
"""Fields with the initialisation, some of which compute it from the weights of the base model."""


def adapter_config(request: Request, depth: Depth) -> dict[str, Any] | None:
    """Return the configuration of a request's adapter, None for a model without one.

    No weights are loaded, so that the initialisation is the plain one of the method. In train mode
    the adapter is trained: published configurations are stored for inference. Raises ConfigError.
    """
    build = request.model.build
    if not isinstance(build, ConfigBuild) or build.adapter_file is None:
        return None
    values = read_json_object(Path(build.adapter_file))
    values["inference_mode"] = request.target.mode is not Mode.TRAIN
    left_out = {name for name in FROM_WEIGHTS if isinstance(values.get(name), str)}
    left_out |= set(NAMED_LAYERS) if depth is Depth.REDUCED else set()
    return {name: value for name, value in values.items() if name not in left_out}


def with_adapter(construct: Construct, values: dict[str, Any] | None) -> Construct:
    """Return a function that makes a model with an adapter on it, or `construct` without one."""
    if values is None:
        return construct

    def construct_both() -> nn.Module:
        import peft

        config = peft.PeftConfig.from_peft_type(**values)
        adapted: nn.Module = peft.get_peft_model(construct(), config)
        return adapted

    return construct_both


def base_of(module: nn.Module, request: Request) -> nn.Module:
    """Return the model that an adapter is on: it determines what a call needs."""
    build = request.model.build
    if isinstance(build, ConfigBuild) and build.adapter_file is not None:
        base: nn.Module = module.get_base_model()
        return base
    return module
