"""The devices that requests may name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.contract import targets
from compilewatch.contract.targets import devices
from compilewatch.errors import UsageError
from compilewatch.plan import check_targets, targets_of
from compilewatch.records import Dtype, FactoryBuild, Mode, Request, Target
from compilewatch.sources.own import own_model, with_inputs
from tests import factories


def test_every_row_is_plausible() -> None:
    names = [row.name for row in devices()]
    assert len(set(names)) == len(names)
    assert {"A10G", "A100", "H100", "RTX4090"} <= set(names)
    for row in devices():
        assert 8 * 2**30 <= row.memory_bytes <= 288 * 2**30
        assert row.bfloat16 == (row.capability >= (8, 0))
        assert 7 <= row.capability[0] <= 12


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        ("cuda", "cuda"),
        ("cuda:H100", "cuda"),
        ("CUDA:a100", "cuda:A100"),
        ("cuda:rtx4090", "cuda:RTX4090"),
    ],
)
def test_a_device_has_one_spelling_and_a_default_type(text: str, name: str) -> None:
    assert targets.canonical(text) == name
    assert (targets.declared(name) is None) == (name == "cpu")
    assert (targets.declared(name) == targets.devices()[0]) == (name == "cuda")
    assert targets.default_dtype(name) is (Dtype.FLOAT32 if name == "cpu" else Dtype.CONFIG)


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:0", "rocm:MI300", "xla", ""])
def test_an_unknown_device_names_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match="known: cpu, cuda, cuda:H100"):
        targets.declared(text)


@pytest.mark.parametrize("name", ["inductor", "xla", "neuron"])
def test_targets_that_generate_code_need_the_device(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is not evaluated for cuda.*dynamo, export"):
        check_targets([Target(name=name, device="cuda")])


def test_a_type_that_the_device_lacks_is_rejected() -> None:
    targets.check_device(Target(device="cuda:T4", dtype=Dtype.FLOAT16))
    with pytest.raises(UsageError, match="Tesla T4 has no bfloat16"):
        targets.check_device(Target(device="cuda:T4", dtype=Dtype.BFLOAT16))


def test_each_target_is_planned_for_each_device_with_its_default_type() -> None:
    made = targets_of(["dynamo"], [Mode.EVAL], None, devices=["cpu", "cuda", "cuda:H100"])
    assert made == (
        Target(device="cpu", dtype=Dtype.FLOAT32),
        Target(device="cuda", dtype=Dtype.CONFIG),
    )
    (named,) = targets_of(["dynamo"], [Mode.EVAL], None, dtype=Dtype.FLOAT16)
    assert named.dtype is Dtype.FLOAT16


@pytest.mark.parametrize(
    ("target", "label", "value"),
    [
        (Target(), "dynamo", "dynamo"),
        (Target(device="cuda", dtype=Dtype.CONFIG), "dynamo/cuda", "dynamo/cuda"),
        (
            Target(device="cuda:A100", dtype=Dtype.FLOAT16, mode=Mode.TRAIN, environment="x"),
            "dynamo/train/cuda:A100/float16@x",
            "dynamo/cuda:A100/float16@x",
        ),
        (Target(dtype=Dtype.BFLOAT16), "dynamo/bfloat16", "dynamo/bfloat16"),
        (Target(name="neuron", environment="xla"), "neuron@xla", "neuron@xla"),
        (Target(name="xla", environment="xla"), "xla", "xla"),
        (Target(environment="vision"), "dynamo", "dynamo"),
        (Target(name="xla", environment="vision"), "xla@vision", "xla@vision"),
        (Target(name="export", backend="strict"), "export:strict", "export:strict"),
        (Target(nested_graph_breaks=True), "dynamo+nested", "dynamo+nested"),
        (Target(nested_graph_breaks=False), "dynamo+not-nested", "dynamo+not-nested"),
    ],
)
def test_a_label_says_what_is_not_the_default(target: Target, label: str, value: str) -> None:
    assert targets.target_label(target) == label
    assert targets.target_label_value(target) == value


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three folders: the current one, one with a package, and one with a space in its name."""
    monkeypatch.chdir(tmp_path)
    code = "def build():\n    return 1\n\n\ndef inputs():\n    return 1\n"
    (tmp_path / "here.py").write_text(code)
    package = tmp_path / "elsewhere" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text(code)
    (tmp_path / "other folder").mkdir()
    (tmp_path / "other folder" / "far.py").write_text(code)
    return tmp_path


def asked(name: str, *python_path: Path, inputs: str | None = None) -> Request:
    spec = own_model(name, python_path)
    assert spec is not None
    if inputs is not None:
        spec = with_inputs(spec, inputs)
    return msgspec.structs.replace(factories.request(name), model=spec)


def test_folders_that_are_searched_anyway_are_not_named(folder: Path) -> None:
    assert targets.naming_options(asked("here:build")) == ""
    assert targets.naming_options(asked("./here.py")) == ""
    assert targets.naming_options(asked("elsewhere/package/net.py:build")) == ""


def test_folders_that_were_given_are_named(folder: Path) -> None:
    far, elsewhere = folder / "other folder", folder / "elsewhere"
    assert targets.naming_options(asked("far:build", far)) == f" --python-path '{far}'"
    both = f" --python-path '{far}' --python-path {elsewhere}"
    assert targets.naming_options(asked("here:build", far, elsewhere)) == both
    assert targets.naming_options(asked("./here.py:build", far)) == f" --python-path '{far}'"


def test_the_environment_comes_first(folder: Path) -> None:
    made = msgspec.structs.replace(
        asked("far:build", folder / "other folder"), target=Target(environment="vision")
    )
    found = targets.naming_options(made)
    assert found == f" --environment vision --python-path '{folder / 'other folder'}'"


def test_inputs_are_named_by_file_and_by_function(folder: Path) -> None:
    assert targets.inputs_option(asked("here:build")) == ""
    assert (
        targets.inputs_option(asked("here:build", inputs="here:inputs")) == " --inputs here:inputs"
    )
    saved = msgspec.structs.replace(asked("here:build"), inputs_file="/saved inputs.toml")
    assert targets.inputs_option(saved) == " --inputs '/saved inputs.toml'"


def test_inputs_from_a_file_elsewhere_are_found_again(folder: Path) -> None:
    made = asked("here:build", inputs=str(folder / "other folder" / "far.py") + ":inputs")
    assert targets.naming_options(made) == f" --python-path '{folder / 'other folder'}'"
    assert targets.inputs_option(made) == " --inputs far:inputs"


def test_a_model_of_a_list_is_named_alone(folder: Path) -> None:
    build = FactoryBuild(factory="far:build", path=str(folder), inputs="far:inputs")
    spec = msgspec.structs.replace(factories.request("team/net").model, build=build)
    request = msgspec.structs.replace(factories.request("team/net"), model=spec)
    assert targets.naming_options(request) == targets.inputs_option(request) == ""
    assert targets.naming_options(factories.request("BertModel")) == ""
