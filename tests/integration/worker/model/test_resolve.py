"""The create phase: fake and real models from classes, config files, weights and factories."""

from __future__ import annotations

import datetime
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers.models.kimi_linear import modeling_kimi_linear

from compilewatch import data
from compilewatch.errors import ConfigError
from compilewatch.records import (
    Build,
    ClassBuild,
    ConfigBuild,
    Depth,
    FactoryBuild,
    ModelSpec,
    Request,
    Target,
    Tier,
)
from compilewatch.worker.model.construct import FilledMemory, construct_fake
from compilewatch.worker.model.overrides import Override, Overrides, load_overrides
from compilewatch.worker.model.resolve import (
    BuiltModel,
    MissingPackageError,
    UnknownArchitectureError,
    build_model,
    change_defaults,
    configuration_class,
    generation_step,
    import_own,
    missing_package,
)
from compilewatch.worker.model.shrink import PARAMETER_BUDGET

pytestmark = pytest.mark.torch


SHIPPED = load_overrides(data.OVERRIDES)

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def _build(
    build: Build,
    *,
    real: bool = False,
    depth: Depth = Depth.FULL,
    overrides: Overrides = SHIPPED,
    architecture: str | None = None,
) -> BuiltModel:
    request = Request(
        model=ModelSpec(source="test", name="model", build=build, architecture=architecture),
        target=Target(),
        key="k",
        depth=depth,
    )
    mode = None if real else FakeTensorMode(allow_non_fake_inputs=True)
    return build_model(request, mode, overrides)


def _library(class_name: str, **options: Any) -> BuiltModel:
    return _build(ClassBuild(class_name=class_name), **options)


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _config_file(tmp_path: Path, values: dict[str, Any]) -> ConfigBuild:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return ConfigBuild(config_file=str(path), config_sha256="0")


# --- library classes ---------------------------------------------------------------------------


def test_the_largest_default_is_built_in_full_without_memory() -> None:
    built = _library("DeepseekV3ForCausalLM")

    assert built.parameters > 600_000_000_000
    assert (built.tier, built.depth) == (Tier.FAKE, Depth.FULL)
    assert all(isinstance(t, FakeTensor) for t in _tensors(built.module))
    assert {str(t.device) for t in _tensors(built.module)} == {"cpu"}


def test_shared_tensors_stay_shared_and_buffers_outside_the_state_dict_are_fake() -> None:
    tied = _library("GPT2LMHeadModel", depth=Depth.REDUCED).module
    assert tied.lm_head.weight is tied.transformer.wte.weight
    rotary = _library("LlamaModel", depth=Depth.REDUCED).module.rotary_emb
    assert isinstance(rotary.inv_freq, FakeTensor)
    assert isinstance(rotary.original_inv_freq, FakeTensor)


def test_a_constructor_that_reads_values_is_built_all_the_same() -> None:
    class ReadsValues(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rates = [float(r) for r in torch.arange(3) / 3]
            self.layers = nn.ModuleList(nn.Dropout(r) for r in rates)
            self.weight = nn.Parameter(torch.empty(2, 3))

    module = construct_fake(ReadsValues, FakeTensorMode())

    assert [layer.p for layer in module.layers] == pytest.approx([0, 1 / 3, 2 / 3])
    assert isinstance(module.weight, FakeTensor)


def test_real_models_are_small_finite_and_the_same_every_time() -> None:
    first, second = (_library("MixtralForCausalLM", real=True) for _ in range(2))

    assert (first.tier, first.depth) == (Tier.REAL, Depth.REDUCED)
    assert first.parameters <= PARAMETER_BUDGET
    assert not any(isinstance(t, FakeTensor) for t in _tensors(first.module))
    for mine, other in zip(_tensors(first.module), _tensors(second.module), strict=True):
        assert torch.equal(mine, other)
        assert mine.isfinite().all()


def test_a_narrowed_model_still_runs() -> None:
    module = _library("Qwen2ForCausalLM", real=True).module.eval()

    with torch.no_grad():
        logits = module(input_ids=torch.arange(8).reshape(2, 4)).logits

    assert logits.shape[:2] == (2, 4)
    assert logits.isfinite().all()


def test_memory_that_nothing_initialises_is_zero() -> None:
    with FilledMemory():
        tensors = [torch.empty(64), torch.empty_like(torch.ones(64)), torch.ones(1).new_empty(64)]

    assert all(torch.equal(t, torch.zeros(64)) for t in tensors)


def _line(**values: Any) -> Override:
    return Override(reason="test", date=datetime.date(2026, 11, 21), **values)


def test_an_override_has_the_last_word_and_keeps_tuples() -> None:
    deeper = _line(classes=("LlamaModel",), config={"num_hidden_layers": 5})
    # TOML has lists alone.
    shape = _line(model_types=("reformer",), config={"axial_pos_shape": [8, 8]})
    overrides = Overrides(override=(deeper, shape))
    built = _library("LlamaModel", depth=Depth.REDUCED, overrides=overrides)
    assert len(built.module.layers) == 5
    assert _library("ReformerModel", overrides=overrides).config.axial_pos_shape == (8, 8)


def functions_of(override: Override) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The functions of the installed Transformers that an override names, with new defaults."""
    for model_type in override.model_types:
        configuration = transformers.CONFIG_MAPPING[model_type].__module__
        module = importlib.import_module(configuration.replace(".configuration_", ".modeling_"))
        for name, values in override.functions.items():
            yield inspect.unwrap(getattr(module, name)), values


def test_functions_of_shipped_overrides_have_the_arguments() -> None:
    found = [each for override in SHIPPED.override for each in functions_of(override)]
    assert found
    for function, values in found:
        assert values.keys() <= inspect.signature(function).parameters.keys()


@pytest.mark.parametrize(("depth", "rows"), [(Depth.FULL, 64), (Depth.REDUCED, 8)])
def test_a_function_has_another_default_at_reduced_depth(
    monkeypatch: pytest.MonkeyPatch, depth: Depth, rows: int
) -> None:
    function = inspect.unwrap(modeling_kimi_linear.chunk_kimi_delta_attention)
    monkeypatch.setattr(function, "__defaults__", function.__defaults__)
    before = {name: each.default for name, each in inspect.signature(function).parameters.items()}

    _library("KimiLinearModel", depth=depth)

    after = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    assert after == {**before, "chunk_size": rows}


def test_defaults_are_those_of_each_kind_of_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(a: int, b: int = 1, *, c: int = 2, d: int, e: int = 3) -> tuple[int, ...]:
        return a, b, c, d, e

    monkeypatch.setattr(modeling_kimi_linear, "function", function, raising=False)
    # What a release lacks is left out.
    functions = {"function": {"b": 10, "e": 30}, "no_such_function": {"size": 8}}
    change_defaults(modeling_kimi_linear.KimiLinearModel, functions)
    assert function(0, d=0) == (0, 10, 2, 0, 30)


def test_gaps_of_a_default_configuration_are_filled_from_overrides() -> None:
    with pytest.raises(TypeError):
        _library("EsmModel", overrides=Overrides())

    assert _library("EsmModel").config.vocab_size == 33


def test_two_overrides_fill_one_sub_configuration() -> None:
    tables = ({"hidden_size": 64, "num_attention_heads": 2}, {"hidden_size": 32})
    lines = [_line(classes=("LlavaModel",), defaults={"text_config": table}) for table in tables]
    overrides = Overrides(override=tuple(lines))
    config = _library("LlavaModel", overrides=overrides).config.text_config
    assert (config.hidden_size, config.num_attention_heads) == (32, 2)


def test_a_vocabulary_holds_the_placeholders_its_parent_names() -> None:
    built = _library("Florence2Model", depth=Depth.REDUCED, overrides=Overrides())

    assert built.config.image_token_id < built.config.text_config.vocab_size


def test_grouped_experts_are_bfloat16_on_fake_tensors_only() -> None:
    fake = _library("MixtralForCausalLM", depth=Depth.REDUCED).module
    real = _library("MixtralForCausalLM", real=True).module

    assert {p.dtype for p in fake.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in real.parameters()} == {torch.float32}
    mode = next(fake.parameters()).fake_mode
    with mode, torch.no_grad():
        assert fake(input_ids=torch.ones(2, 4, dtype=torch.int64)).logits.shape[:2] == (2, 4)


def test_a_class_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownArchitectureError, match="LlamaForNothing"):
        _library("LlamaForNothing")


@pytest.mark.parametrize(
    ("message", "package"),
    [
        ("X requires the natten library but it was not found in your environment.", "natten"),
        ("X requires the PIL library. \nX requires the timm library but", "timm"),
        ("No module named 'scipy.optimize'", "scipy"),
    ],
)
def test_the_missing_package_is_read_from_an_import_error(message: str, package: str) -> None:
    found = missing_package(ImportError(message))

    assert found is not None
    assert found.package == package


# --- config.json -------------------------------------------------------------------------------


def test_the_architecture_is_that_of_the_request_or_of_the_file_or_the_base(
    tmp_path: Path,
) -> None:
    build = _config_file(tmp_path, TINY)
    named = _build(build)
    assert type(named.module) is transformers.LlamaForCausalLM
    assert len(named.module.model.layers) == 3
    other = _build(build, architecture="LlamaModel", depth=Depth.REDUCED)
    assert type(other.module) is transformers.LlamaModel
    assert len(other.module.layers) == 2
    unnamed = _config_file(tmp_path, {k: v for k, v in TINY.items() if k != "architectures"})
    assert type(_build(unnamed).module) is transformers.LlamaModel


def test_a_tower_takes_its_part_of_a_composite_configuration(tmp_path: Path) -> None:
    values = {"model_type": "clip", "vision_config": {"num_hidden_layers": 4}}
    built = _build(_config_file(tmp_path, values), architecture="CLIPVisionModel")

    assert built.config.model_type == "clip_vision_model"
    assert built.config.num_hidden_layers == 4


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "nonesuch"}, "'nonesuch'.*another version"),
        ({"model_type": "nonesuch", "auto_map": {"AutoModel": "m.X"}}, "remote code"),
    ],
)
def test_an_unknown_model_type_is_a_clear_error(
    tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnknownArchitectureError, match=said):
        _build(_config_file(tmp_path, values))


def test_remote_code_runs_only_where_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "configuration_own.py").write_text(
        "from transformers import PreTrainedConfig\n"
        "class OwnConfig(PreTrainedConfig):\n    model_type = 'own'\n"
    )
    (tmp_path / "modeling_own.py").write_text(
        "import torch\nfrom transformers import PreTrainedModel\n"
        "from .configuration_own import OwnConfig\n"
        "class OwnModel(PreTrainedModel):\n"
        "    config_class = OwnConfig\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.linear = torch.nn.Linear(3, 4)\n"
        "        self.post_init()\n"
    )
    auto_map = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    build = _config_file(
        tmp_path, {"model_type": "own", "architectures": ["OwnModel"], "auto_map": auto_map}
    )

    with pytest.raises(UnknownArchitectureError, match="remote code"):
        _build(build)
    trusted = ConfigBuild(config_file=build.config_file, config_sha256="0", trust_remote_code=True)
    assert type(_build(trusted).module).__name__ == "OwnModel"


def test_real_weights_are_loaded_where_asked_for(tmp_path: Path) -> None:
    saved = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    saved.save_pretrained(tmp_path)
    build = ConfigBuild(config_file=str(tmp_path / "config.json"), config_sha256="0", weights=True)

    built = _build(build, real=True)

    assert built.depth is Depth.FULL
    assert torch.equal(built.module.lm_head.weight, saved.lm_head.weight)


# --- factories ---------------------------------------------------------------------------------


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], FactoryBuild]:
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(body: str) -> FactoryBuild:
        name = f"made_{abs(hash(body))}"
        (tmp_path / f"{name}.py").write_text(f"from torch import nn\ndef make():\n    {body}\n")
        return FactoryBuild(factory=f"{name}:make", path=str(tmp_path))

    return write


def test_a_factory_is_imported_from_its_folder(factory: Callable[[str], FactoryBuild]) -> None:
    build = factory("return nn.Linear(3, 4)")
    assert isinstance(_build(build, real=True).module.weight, nn.Parameter)
    assert isinstance(_build(build).module.weight, FakeTensor)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (
            "from torch import no_such_name",
            ImportError,
            "no_such_name",
        ),  # what it raises is its own
        ("import not_installed", MissingPackageError, "not_installed"),
        ("return 3", ConfigError, r"returned int, not a torch\.nn\.Module"),
    ],
)
def test_what_is_wrong_with_a_factory(
    factory: Callable[[str], FactoryBuild], body: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        _build(factory(body))


class AutoConfig:
    """A part whose type the parent does not fix: it has no model type."""


class OddTextConfig:
    model_type = "odd_text"


class OddDecoderConfig:
    model_type = "odd_decoder"


class OddTextEncoderConfig:
    model_type = "odd_text_encoder"
    sub_configs: ClassVar = {"decoder": OddDecoderConfig}


class OddConfig:
    model_type = "odd"
    sub_configs: ClassVar = {
        "text": OddTextConfig,
        "encoder": OddTextEncoderConfig,
        "vision": AutoConfig,
    }


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("OddModel", OddConfig),
        ("OddForCausalLM", OddConfig),
        ("OddTextModel", OddTextConfig),
        ("OddTextEncoderModel", OddTextEncoderConfig),
        ("OddDecoderForCausalLM", OddDecoderConfig),  # a part of a part
        ("OddVisionModel", OddConfig),  # nothing says which configuration that is
        ("AnotherModel", OddConfig),
    ],
)
def test_a_class_takes_the_part_that_it_is_named_after(class_name: str, expected: Any) -> None:
    model_class = type(class_name, (), {"config_class": OddConfig})
    assert configuration_class(model_class) is expected


class Stage(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


class Codec(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class OnlyGenerates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codec = Codec()
        self.first = Stage()
        self.second = Stage()

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self.codec(self.second.generate(self.first.generate(x)))


def test_a_class_without_forward_is_evaluated_on_a_step_of_its_generation() -> None:
    module, stage, empty = OnlyGenerates(), Stage(), nn.Module()
    assert generation_step(module) == ("first", module.first)
    assert generation_step(stage) == ("", stage)
    assert generation_step(empty) == ("", empty)


def test_a_text_of_the_same_length_and_second_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "changed_soon.py"
    build = FactoryBuild(factory="changed_soon:model", path=str(tmp_path))
    for value in ("first", "other"):
        module.write_text(f"VALUE = {value!r}\n")
        os.utime(module, (1_000_000_000, 1_000_000_000))
        with monkeypatch.context() as fresh:
            fresh.setattr(sys, "dont_write_bytecode", False)
            fresh.setattr(sys, "path", list(sys.path))
            imported = import_own(build, "changed_soon")
            fresh.delitem(sys.modules, "changed_soon")
        sys.modules.pop("changed_soon", None)
        assert value == imported.VALUE
    assert list(tmp_path.rglob("*.pyc")) == []
