"""The create phase: fake and real models from classes, config files, weights and factories."""

import datetime
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilewatch import records
from compilewatch.errors import ConfigError
from compilewatch.records import ConfigBuild, Depth
from compilewatch.worker.model import overrides, resolve
from compilewatch.worker.model.construct import FilledMemory, construct_fake, preserved
from compilewatch.worker.model.overrides import Override
from compilewatch.worker.model.resolve import MissingPackageError, UnknownArchitectureError
from compilewatch.worker.model.shrink import PARAMETER_BUDGET
from tests import factories

pytestmark = pytest.mark.torch

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


def built(
    build: records.Build | str,
    lines: Sequence[dict[str, Any]] | None = None,
    real: bool = False,
    depth: Depth = Depth.FULL,
    architecture: str | None = None,
) -> resolve.BuiltModel:
    """A built model; the `lines` replace the shipped overrides."""
    build = records.ClassBuild(class_name=build) if isinstance(build, str) else build
    request = factories.request("model", build=build, architecture=architecture, depth=depth)
    mode = None if real else FakeTensorMode(allow_non_fake_inputs=True)
    with pytest.MonkeyPatch.context() as patch:
        if lines is not None:
            about: dict[str, Any] = {"reason": "test", "date": datetime.date(2026, 11, 21)}
            own = tuple(Override(**about, **line) for line in lines)
            patch.setattr(overrides, "overrides_of", lambda _: own)
        return resolve.build_model(request, mode)


def tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[..., ConfigBuild]:
    def write(**values: Any) -> ConfigBuild:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(values))
        return ConfigBuild(config_file=str(path), config_sha256="0")

    return write


Write = Callable[..., ConfigBuild]


# --- library classes ---------------------------------------------------------------------------


def test_the_largest_default_is_built_in_full_without_memory() -> None:
    model = built("DeepseekV3ForCausalLM")
    assert model.parameters > 600_000_000_000
    assert model.depth is Depth.FULL
    assert all(isinstance(t, FakeTensor) for t in tensors(model.module))
    assert {str(t.device) for t in tensors(model.module)} == {"cpu"}


def test_shared_tensors_stay_shared_and_buffers_outside_the_state_dict_are_fake() -> None:
    tied = built("GPT2LMHeadModel", depth=Depth.REDUCED).module
    assert tied.lm_head.weight is tied.transformer.wte.weight
    rotary = built("LlamaModel", depth=Depth.REDUCED).module.rotary_emb
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


def test_real_models_are_small_finite_and_the_same_every_time_and_run() -> None:
    first, second = (built("MixtralForCausalLM", real=True) for _ in range(2))
    assert first.depth is Depth.REDUCED
    assert first.parameters <= PARAMETER_BUDGET
    for mine, other in zip(tensors(first.module), tensors(second.module), strict=True):
        assert torch.equal(mine, other)
        assert mine.isfinite().all()
    with torch.no_grad():
        logits = first.module.eval()(input_ids=torch.arange(8).reshape(2, 4)).logits
    assert logits.shape[:2] == (2, 4)
    assert logits.isfinite().all()
    with FilledMemory():
        empty = [torch.empty(64), torch.empty_like(torch.ones(64)), torch.ones(1).new_empty(64)]
    assert all(torch.equal(t, torch.zeros(64)) for t in empty)


def test_grouped_experts_are_bfloat16_on_fake_tensors_only() -> None:
    fake = built("MixtralForCausalLM", depth=Depth.REDUCED).module
    real = built("MixtralForCausalLM", real=True).module
    assert {p.dtype for p in fake.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in real.parameters()} == {torch.float32}
    mode = next(fake.parameters()).fake_mode
    with mode, torch.no_grad():
        assert fake(input_ids=torch.ones(2, 4, dtype=torch.int64)).logits.shape[:2] == (2, 4)


def test_overrides_have_the_last_word_keep_tuples_and_fill_gaps() -> None:
    deeper: dict[str, Any] = {"classes": ("LlamaModel",), "config": {"num_hidden_layers": 5}}
    assert len(built("LlamaModel", [deeper], depth=Depth.REDUCED).module.layers) == 5
    # TOML has lists alone.
    shape: dict[str, Any] = {"axial_pos_shape": [8, 8]}
    reformer = built("ReformerModel", [{"model_types": ("reformer",), "config": shape}])
    assert reformer.config.axial_pos_shape == (8, 8)
    # Two of them fill one sub-configuration.
    tables = ({"hidden_size": 64, "num_attention_heads": 2}, {"hidden_size": 32})
    lines = [{"classes": ("LlavaModel",), "defaults": {"text_config": t}} for t in tables]
    config = built("LlavaModel", lines).config.text_config
    assert (config.hidden_size, config.num_attention_heads) == (32, 2)
    with pytest.raises(TypeError):
        built("EsmModel", [])
    assert built("EsmModel").config.vocab_size == 33
    # A vocabulary holds the placeholders that its parent names.
    config = built("Florence2Model", [], depth=Depth.REDUCED).config
    assert config.image_token_id < config.text_config.vocab_size


@pytest.mark.parametrize(
    ("message", "package"),
    [
        ("X requires the natten library but it was not found in your environment.", "natten"),
        ("X requires the PIL library. \nX requires the timm library but", "timm"),
        ("No module named 'scipy.optimize'", "scipy"),
    ],
)
def test_the_missing_package_is_read_from_an_import_error(message: str, package: str) -> None:
    missing = resolve.missing_package(ImportError(message))
    assert missing is not None
    assert missing.package == package


# --- config.json -------------------------------------------------------------------------------


def test_the_architecture_is_that_of_the_request_or_of_the_file_or_the_base(
    config_file: Write,
) -> None:
    named = config_file(**TINY)
    model = built(named).module
    assert (type(model), len(model.model.layers)) == (transformers.LlamaForCausalLM, 3)
    other = built(named, architecture="LlamaModel", depth=Depth.REDUCED).module
    assert (type(other), len(other.layers)) == (transformers.LlamaModel, 2)
    unnamed = config_file(**TINY | {"architectures": None})
    assert type(built(unnamed).module) is transformers.LlamaModel
    # A tower takes its part of a composite configuration.
    clip = config_file(model_type="clip", vision_config={"num_hidden_layers": 4})
    config = built(clip, architecture="CLIPVisionModel").config
    assert (config.model_type, config.num_hidden_layers) == ("clip_vision_model", 4)


def test_an_unknown_class_or_model_type_is_a_clear_error(config_file: Write) -> None:
    with pytest.raises(UnknownArchitectureError, match="LlamaForNothing"):
        built("LlamaForNothing")
    with pytest.raises(UnknownArchitectureError, match=r"'nonesuch'.*another version"):
        built(config_file(model_type="nonesuch"))
    with pytest.raises(UnknownArchitectureError, match="remote code"):
        built(config_file(model_type="nonesuch", auto_map={"AutoModel": "m.X"}))


REMOTE = """
import torch
from transformers import PreTrainedConfig, PreTrainedModel
class OwnConfig(PreTrainedConfig):
    model_type = "own"
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(3, 4)
        self.post_init()
"""


def test_remote_code_runs_only_where_it_is_allowed(config_file: Write, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(REMOTE)
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    file = config_file(model_type="own", architectures=["OwnModel"], auto_map=auto_map).config_file
    with pytest.raises(UnknownArchitectureError, match="remote code"):
        built(ConfigBuild(config_file=file, config_sha256="0"))
    trusted = ConfigBuild(config_file=file, config_sha256="0", trust_remote_code=True)
    assert type(built(trusted).module).__name__ == "OwnModel"


def test_real_weights_are_loaded_where_asked_for(tmp_path: Path) -> None:
    saved = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    saved.save_pretrained(tmp_path)
    build = ConfigBuild(config_file=str(tmp_path / "config.json"), config_sha256="0", weights=True)
    loaded = built(build, real=True)
    assert loaded.depth is Depth.FULL
    assert torch.equal(loaded.module.lm_head.weight, saved.lm_head.weight)


# --- factories ---------------------------------------------------------------------------------


@pytest.fixture
def factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], records.FactoryBuild]:
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(body: str) -> records.FactoryBuild:
        name = f"made_{abs(hash(body))}"
        (tmp_path / f"{name}.py").write_text(f"from torch import nn\ndef make():\n    {body}\n")
        return records.FactoryBuild(factory=f"{name}:make", path=str(tmp_path))

    return write


def test_a_factory_is_imported_from_its_folder(
    factory: Callable[[str], records.FactoryBuild],
) -> None:
    build = factory("return nn.Linear(3, 4)")
    assert isinstance(built(build, real=True).module.weight, nn.Parameter)
    assert isinstance(built(build).module.weight, FakeTensor)
    errors: dict[str, tuple[type[Exception], str]] = {
        "from torch import no_such_name": (ImportError, "no_such_name"),  # its own error
        "import not_installed": (MissingPackageError, "not_installed"),
        "return 3": (ConfigError, r"returned int, not a torch\.nn\.Module"),
    }
    for body, (error, says) in errors.items():
        with pytest.raises(error, match=says):
            built(factory(body))


def test_a_text_of_the_same_length_and_second_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "changed_soon.py"
    build = records.FactoryBuild(factory="changed_soon:model", path=str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for value in ("first", "other"):
        module.write_text(f"VALUE = {value!r}\n")
        os.utime(module, (1_000_000_000, 1_000_000_000))
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        imported = resolve.import_own(build, "changed_soon").VALUE
        assert imported == value
        del sys.modules["changed_soon"]
    assert list(tmp_path.rglob("*.pyc")) == []


def config_class(name: str, **parts: Any) -> Any:
    return type(name, (), {"model_type": name, "sub_configs": parts})


def test_a_class_takes_the_part_that_it_is_named_after() -> None:
    auto = type("AutoConfig", (), {})  # its type is not fixed by the parent: no model type
    text, decoder = config_class("OddTextConfig"), config_class("OddDecoderConfig")
    encoder = config_class("OddTextEncoderConfig", decoder=decoder)
    odd = config_class("OddConfig", text=text, encoder=encoder, vision=auto)
    for class_name, expected in {
        "OddForCausalLM": odd,
        "OddTextModel": text,
        "OddTextEncoderModel": encoder,
        "OddDecoderForCausalLM": decoder,  # a part of a part
        "OddVisionModel": odd,  # nothing says which configuration that is
        "AnotherModel": odd,
    }.items():
        model_class = type(class_name, (), {"config_class": odd})
        assert resolve.configuration_class(model_class) is expected


def test_a_class_without_forward_is_evaluated_on_a_step_of_its_generation() -> None:
    def kind(*names: str) -> Any:
        return type("Kind", (nn.Module,), dict.fromkeys(names, lambda self, x: x))()

    module, stage, empty = kind("generate"), kind("forward", "generate"), nn.Module()
    for name, part in (("codec", kind("forward")), ("first", stage), ("second", stage)):
        module.add_module(name, part)
    assert resolve.generation_step(module) == ("first", stage)
    assert resolve.generation_step(stage) == ("", stage)
    assert resolve.generation_step(empty) == ("", empty)


class Remembering(nn.Module):
    """Leaves every kind of trace: a new and a changed attribute, a buffer's value and identity.

    Its first call installs a hook, as the recording of outputs in Transformers does.
    """

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(4)
        self.register_buffer("mask", None)
        self.register_buffer("steps", torch.zeros(1))
        self.seen: Any = None
        self.hooked = False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if not self.hooked:
            self.inner.register_forward_hook(print, with_kwargs=True)
            self.hooked = True
        self.seen = self.new = value
        self.mask = value > 0
        self.steps = self.steps + 1
        return self.inner(value)


def test_nothing_of_a_run_is_left_also_after_an_error() -> None:
    module: Any = Remembering()
    steps, weight = module.steps, module.inner.weight

    def failing() -> None:
        with preserved(module):
            module(torch.randn(8, 4)).sum().backward()
            assert module.inner.running_mean.any()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert (module.seen, module.mask, weight.grad) == (None, None, None)
    assert not hasattr(module, "new")
    assert module.steps is steps
    assert module.inner.weight is weight
    assert not module.inner.running_mean.any()
    assert not module.hooked
    assert not module.inner._forward_hooks
