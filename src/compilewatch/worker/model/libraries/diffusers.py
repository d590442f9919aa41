"""diffusers: model classes from their default or a repository's configuration, and their inputs.

Inputs come from the names of arguments and the fields of the configuration; what single classes
need besides is in `data/diffusers.toml`.
"""

import ast
import inspect
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from compilewatch.contract.libraries import LibraryModel
from compilewatch.data import DIFFUSERS
from compilewatch.errors import ConfigError
from compilewatch.files import read_json_object
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model.libraries import BATCH, Library

MIN_LAYERS = 2
"""Layers of a stack that stay at reduced depth."""

DEPTH_NAME = re.compile(
    r"(\w+_)?(num|n)_(\w+_)?(layers|blocks)|(\w+_)?depths?|nlayers|(\w+_)?layers_per_(\w+_)?block"
)
"""Arguments that count the layers of a stack, or list the counts of several."""

NO_MODELS = ("Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor", "Config")
"""Ends of the names of Transformers' classes that a pipeline takes and that are no models."""

TOKENS = 16
"""Tokens of a text."""

SIDE = 16
"""Height and width of latents, unless the class fixes them."""

IMAGE = 64
"""Height and width of an image for an autoencoder."""

FRAMES = 9
"""Frames of a video for an autoencoder: one, and a multiple of each compression ratio."""

LATENT_FRAMES = 3
"""Frames of the latents of a video."""

SAMPLES = 2**16
"""Samples of a sound for an autoencoder: more than a second, and a multiple of each ratio."""

TEXT_WIDTH = (
    *("caption_channels", "text_embed_dim", "joint_attention_dim", "text_dim", "cap_feat_dim"),
    *("encoder_hid_dim", "context_in_dim", "encoder_hidden_size", "cross_attention_dim"),
    *("in_text_dim", "text_encoder_dim", "condition_dim"),
)
"""Fields with the width of the text's features, the decisive one first."""


class Diffusers(Library):
    """A subclass of `ModelMixin`, made from the arguments that its configuration records."""

    def models(self) -> Iterator[LibraryModel]:
        """Yield the exported classes with a forward, and the pipelines that consist of them."""
        import diffusers

        exported, package = set(dir(diffusers)), Path(diffusers.__file__).parent
        classes: dict[str, type[nn.Module]] = {}
        for name in sorted(exported & set(dir(diffusers.models)) - {"ModelMixin"}):
            member = getattr(diffusers, name)
            if isinstance(member, type) and issubclass(member, diffusers.ModelMixin):
                classes[name] = member

        def place(name: str) -> tuple[Path, int]:
            module = list(vars(inspect.getmodule(classes[name])))
            return Path(inspect.getfile(classes[name])), module.index(name)

        names = [name for name in sorted(classes, key=place) if _has_forward(classes[name])]
        for name in names:
            file, _ = place(name)
            folders = file.relative_to(package / "models").parts[:-1]
            task = folders[0].replace("_", "-") if folders else "diffusion"
            yield LibraryModel(name=name, family=file.stem, task=task)
        for path in sorted((package / "pipelines").rglob("pipeline_*.py")):
            for name, parts in _pipelines(ast.parse(path.read_text("utf-8")), set(names)):
                if name in exported:
                    yield LibraryModel(name=name, family="pipeline", parts=parts)

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        reviewed = _reviewed(build.name)
        lines = ["import diffusers", "", f"model = {_call(build.name, depth, build)}"]
        if "prepare" in reviewed:
            lines.append(f"model.{reviewed['prepare']}()")
        if "shares" in reviewed:
            lines.append(f"model.from_transformer(model, {_call(reviewed['shares'], depth)})")
        return lines

    def inputs(self, module: nn.Module, build: LibraryBuild) -> dict[str, Any] | None:
        del build
        parts = getattr(module, "nets", None) or getattr(module, "adapters", None)
        if not hasattr(module, "config") and parts is not None:
            return _inputs_of_several(module, list(parts))
        facts = Facts(module, dict(inspect.signature(module.forward).parameters))
        values = {
            name: _evaluated(value, facts)
            for name, value in _reviewed(type(module).__name__).get("inputs", {}).items()
        }
        for name, parameter in facts.parameters.items():
            if name in values:
                continue
            if name in RULES:
                argument = RULES[name](facts)
            else:
                argument = _evaluated(_reviewed("rules").get(name), facts)
            if argument is None and parameter.default is inspect.Parameter.empty:
                argument = _documented(facts, name)
            if argument is not None:
                values[name] = argument
        return {name: value for name, value in values.items() if value is not None}


def _has_forward(model_class: type[nn.Module]) -> bool:
    """Whether a class can run: some only hold weights that another class takes."""
    if "forward" not in vars(model_class):
        return True
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(model_class.forward))).body
    assert isinstance(function, ast.FunctionDef)
    return not all(isinstance(line, ast.Expr | ast.Pass | ast.Raise) for line in function.body)


def _pipelines(tree: ast.Module, models: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield pipelines with the models that their constructors are annotated with.

    They are read and not imported, since many need further packages, which their models do not.
    """
    foreign = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "transformers"
        for alias in node.names
    }
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not node.name.endswith("Pipeline"):
            continue
        annotated = [
            name.id
            for item in node.body
            if isinstance(item, ast.FunctionDef) and item.name == "__init__"
            for argument in (*item.args.args, *item.args.kwonlyargs)
            if argument.annotation is not None
            for name in ast.walk(argument.annotation)
            if isinstance(name, ast.Name)
        ]
        parts = dict.fromkeys(
            f"diffusers/{name}" if name in models else name
            for name in annotated
            if name in models or (name in foreign and not name.endswith(NO_MODELS))
        )
        if parts:
            yield node.name, tuple(parts)


@cache
def _reviewed(class_name: str) -> dict[str, Any]:
    """What `data/diffusers.toml` says of a class."""
    classes: dict[str, dict[str, Any]] = tomllib.loads(DIFFUSERS.read_text("utf-8"))
    return classes.get(class_name, {})


def _call(name: str, depth: Depth, build: LibraryBuild | None = None) -> str:
    """The source of the call of a class, without defaults that nothing changes.

    The arguments are those of a repository, or defaults with what they lack.
    """
    import diffusers

    if not hasattr(diffusers, name):
        raise ConfigError(f"diffusers {diffusers.__version__} has no class {name!r}")
    chosen, reviewed = getattr(diffusers, name), _reviewed(name)
    if (several := reviewed.get("holds")) is not None:
        parts = f"[{_call(several['model'], depth)} for _ in range({several['count']})]"
        return f"diffusers.{name}({several['argument']}={parts})"
    parameters = inspect.signature(chosen.__init__).parameters
    if build is not None and build.configuration:
        configuration = read_json_object(Path(build.configuration))
        values = {key: value for key, value in configuration.items() if key in parameters}
    else:
        values = {
            key: parameter.default
            for key, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        values |= {key: _evaluated(v) for key, v in reviewed.get("configuration", {}).items()}
    if depth is Depth.REDUCED:
        values = _shallow(values)
        values |= {key: _evaluated(value) for key, value in reviewed.get("reduced", {}).items()}
    arguments = (f"{n}={v!r}" for n, v in values.items() if v != parameters[n].default)
    return f"diffusers.{name}({', '.join(arguments)})"


def _shallow(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with few layers in each stack; the number of stages stays."""
    reduced = dict(values)
    for name, value in values.items():
        if not DEPTH_NAME.fullmatch(name):
            continue
        least = 1 if "layers_per" in name else MIN_LAYERS
        if isinstance(value, int) and not isinstance(value, bool):
            reduced[name] = min(value, least)
        elif isinstance(value, (list, tuple)) and all(isinstance(count, int) for count in value):
            reduced[name] = type(value)(min(count, least) for count in value)
    return reduced


@dataclass(frozen=True)
class Facts:
    """A model, and what its configuration says."""

    module: nn.Module
    parameters: dict[str, inspect.Parameter]

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first field that is set; of a list, its first entry."""
        for name in names:
            value = self.module.config.get(name)
            if value is not None:
                return value[0] if isinstance(value, (list, tuple)) else value
        return default

    @property
    def channels(self) -> int:
        return int(self.get("in_channels", "in_dim", "latent_channels", default=4))

    @property
    def is_packed(self) -> bool:
        """Whether images are sequences of patches, which the caller makes."""
        return bool({"img_ids", "img_shapes"} & self.parameters.keys())

    @property
    def is_video(self) -> bool:
        patch = self.module.config.get("patch_size")
        fields = ("patch_size_t", "sample_frames", "num_frames", "video_length")
        return (
            "3D" in type(self.module).__name__
            or (isinstance(patch, (list, tuple)) and len(patch) == 3)
            or any(self.module.config.get(field) is not None for field in fields)
            or any(isinstance(part, nn.Conv3d) for part in self.module.modules())
        )


_SIZES = {"BATCH": BATCH, "TOKENS": TOKENS, "SIDE": SIDE, "FRAMES": LATENT_FRAMES}


def _evaluated(value: Any, facts: Facts | None = None) -> Any:
    """The value of a row of `data/diffusers.toml`, of which strings are expressions."""
    if not isinstance(value, str):
        return value
    code = compile(value.strip(), DIFFUSERS.name, "eval")
    names: dict[str, Any] = {"range": range}
    if facts is not None:
        import diffusers

        names_used = set(_names_in(code))
        known = _SIZES | {
            "torch": torch,
            "diffusers": diffusers,
            "module": facts.module,
            "get": facts.get,
            "len": len,
            "range": range,
            "normal": lambda *shape: torch.randn(BATCH, *shape),
            "uniform": lambda *shape: torch.rand(BATCH, *shape),
            "integers": lambda below, *shape: torch.randint(0, below, (BATCH, *shape)),
            "constant": lambda value, *shape: torch.full((BATCH, *shape), value),
            "video": _random_video,
            "positions": lambda count: torch.arange(count)[:, None].repeat(1, 3),
        }
        names = {name: facts.get(name) for name in names_used - known.keys()} | known
        if "channels" in names_used:
            names["channels"] = facts.channels
    return eval(code, {**names, "__builtins__": {}})


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a comprehension
            yield from _names_in(constant)


def _random_video(channels: int, frames: int = LATENT_FRAMES, side: int = SIDE) -> torch.Tensor:
    return torch.randn(BATCH, channels, frames, side, side)


def _inputs_of_several(module: nn.Module, parts: list[nn.Module]) -> dict[str, Any]:
    """The arguments of one part, with a condition and a weight for each part of a container."""
    values = Diffusers().inputs(parts[0], LibraryBuild(library="diffusers", name=""))
    assert values is not None
    takes = inspect.signature(module.forward).parameters
    if "xs" in takes:
        return {"xs": [values["x"]] * len(parts)}
    values["controlnet_cond"] = [values["controlnet_cond"]] * len(parts)
    values["conditioning_scale"] = [1.0] * len(parts)
    if "controlnet_mode" in takes:
        values["controlnet_mode"] = [values["controlnet_mode"]] * len(parts)
    return values


def _documented(facts: Facts, name: str) -> torch.Tensor | None:
    """An argument whose docstring gives its shape in fields of the configuration."""
    doc = inspect.getdoc(facts.module.forward) or ""
    shape_text = re.search(rf"^\s*{name} \(.*?shape `?\((?P<shape>[^)]*)\)", doc, re.MULTILINE)
    if shape_text is None:
        return None
    shape: list[int] = []
    for dimension in map(str.strip, shape_text["shape"].split(",")):
        if isinstance(known := facts.get(dimension), int):
            shape.append(known)
        elif dimension.startswith("batch"):
            shape.append(BATCH)
        elif "sequence" in dimension or dimension == "length":
            shape.append(TOKENS)
        else:
            return None
    return torch.randint(0, 1000, shape) if name.endswith("ids") else torch.randn(shape)


def _hidden_states(facts: Facts) -> torch.Tensor:
    if facts.is_packed:
        return torch.randn(BATCH, SIDE**2, facts.channels)
    if facts.is_video:
        return _random_video(facts.channels)
    return torch.randn(BATCH, facts.channels, SIDE, SIDE)


def _sample(facts: Facts) -> torch.Tensor:
    """What an autoencoder encodes, as its first convolution takes it, or the latents of a U-Net."""
    if not (hasattr(facts.module, "encode") or hasattr(facts.module, "encoder")):
        return _hidden_states(facts)
    channels = int(facts.get("in_channels", "input_channels", "audio_channels", default=3))
    for layer in facts.module.modules():
        if isinstance(layer, nn.Conv3d):
            return torch.rand(BATCH, channels, FRAMES, IMAGE, IMAGE)
        if isinstance(layer, nn.Conv2d):
            return torch.rand(BATCH, channels, IMAGE, IMAGE)
        if isinstance(layer, nn.Conv1d):
            channels = int(facts.get("audio_channels", "num_channels", "in_channels", default=1))
            return torch.rand(BATCH, channels, SAMPLES)
    return _hidden_states(facts)


def _control(facts: Facts) -> torch.Tensor:
    """The condition of a control network: an image for a U-Net, latents for a transformer."""
    if "conditioning_embedding_out_channels" in facts.module.config or hasattr(
        facts.module, "controlnet_cond_embedding"
    ):
        return torch.rand(BATCH, 3, 8 * SIDE, 8 * SIDE)
    return _hidden_states(facts)


def _ids(facts: Facts, *, text: bool = False) -> torch.Tensor:
    """The place of each token on each axis: none of a text, rows and columns of an image."""
    axes = facts.module.config.get("axes_dims_rope") or (0, 0, 0)
    count = TOKENS if text else SIDE**2
    ids = torch.zeros(count, len(axes))
    if not text:
        ids[:, 1] = torch.arange(count) // SIDE
        ids[:, 2] = torch.arange(count) % SIDE
    return ids


Rule = Callable[[Facts], Any]

RULES: dict[str, Rule] = {
    "controlnet_cond": _control,
    "encoder_hidden_states": lambda facts: torch.randn(
        BATCH, TOKENS, int(facts.get(*TEXT_WIDTH, default=768))
    ),
    "hidden_states": _hidden_states,
    "img_ids": _ids,
    "sample": _sample,
    "txt_ids": lambda facts: _ids(facts, text=True),
    "x": _sample,
}
"""Arguments by name, besides those of the data. Others keep their defaults."""
