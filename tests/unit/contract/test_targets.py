"""The devices that requests may name, the labels of targets, and what repeats a request."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.contract import targets
from compilewatch.errors import UsageError
from compilewatch.plan import check_targets, targets_of
from compilewatch.records import Dtype, FactoryBuild, Mode, Request, Target
from compilewatch.sources.own import own_model, with_inputs
from tests import factories


def test_every_row_is_plausible() -> None:
    rows = targets.devices()
    assert {"A10G", "A100", "H100", "RTX4090"} <= {row.name for row in rows}
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert 8 * 2**30 <= row.memory_bytes <= 288 * 2**30
        if row.kind == "cuda":
            assert row.capability is not None
            assert row.bfloat16 == (row.capability >= (8, 0))
            assert 7 <= row.capability[0] <= 12


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CPU", "cpu"),
        ("cuda", "cuda"),
        ("cuda:H100", "cuda"),
        ("CUDA:a100", "cuda:A100"),
        ("cuda:rtx4090", "cuda:RTX4090"),
        ("Neuron:TRN2", "neuron"),
        ("neuron:trn3", "neuron:trn3"),
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


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target(name="inductor", device="cuda"), "inductor is not evaluated for cuda.*dynamo, exp"),
        (Target(name="xla", device="cuda"), "xla is not evaluated for cuda"),
        (Target(name="neuron", device="cuda"), "neuron is not evaluated for cuda"),
        (Target(device="cuda:T4", dtype=Dtype.BFLOAT16), "Tesla T4 has no bfloat16"),
        (Target(name="inductor", device="neuron"), "inductor is not evaluated for neuron"),
        (Target(device="neuron", dynamic=True), "TorchNeuron rejects dynamic=True"),
    ],
)
def test_a_target_needs_a_device_that_it_captures_for_and_that_has_its_options(
    target: Target, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_targets([target])


def test_each_target_is_planned_for_each_device_with_its_default_type() -> None:
    made = targets_of(["dynamo"], [Mode.EVAL], None, devices=["cpu", "cuda", "cuda:H100"])
    assert made == (
        Target(device="cpu", dtype=Dtype.FLOAT32),
        Target(device="cuda", dtype=Dtype.CONFIG),
    )
    (named,) = targets_of(["dynamo"], [Mode.EVAL], None, dtype=Dtype.FLOAT16)
    assert named.dtype is Dtype.FLOAT16


EVERYTHING = Target(device="cuda:A100", dtype=Dtype.FLOAT16, mode=Mode.TRAIN, environment="x")


@pytest.mark.parametrize(
    ("target", "label"),
    [
        (Target(), "dynamo"),
        (Target(device="cuda", dtype=Dtype.CONFIG), "dynamo/cuda"),
        (EVERYTHING, "dynamo/train/cuda:A100/float16@x"),
        (Target(dtype=Dtype.BFLOAT16), "dynamo/bfloat16"),
        (Target(name="neuron", environment="xla"), "neuron@xla"),
        (Target(name="xla", environment="xla"), "xla"),
        (Target(environment="vision"), "dynamo"),
        (Target(name="xla", environment="vision"), "xla@vision"),
        (Target(name="export", backend="strict"), "export:strict"),
        (Target(nested_graph_breaks=True), "dynamo+nested"),
        (Target(nested_graph_breaks=False), "dynamo+not-nested"),
    ],
)
def test_a_label_says_what_is_not_the_default(target: Target, label: str) -> None:
    assert targets.target_label(target) == label
    assert targets.target_label_value(target) == label.replace("/train", "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three folders: the current one, one with a package, and one with a space in its name."""
    monkeypatch.chdir(tmp_path)
    for name in ("here.py", "elsewhere/package/net.py", "other folder/far.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            "def build():\n    return 1\n\n\ndef inputs():\n    return 1\n"
        )
    (tmp_path / "elsewhere" / "package" / "__init__.py").touch()
    return tmp_path


def asked(name: str, *paths: Path, inputs: str = "", **fields: Any) -> Request:
    spec = own_model(name, paths)
    assert spec is not None
    spec = with_inputs(spec, inputs) if inputs else spec
    return msgspec.structs.replace(factories.request(name), model=spec, **fields)


def test_folders_are_named_unless_they_are_searched_anyway_after_the_environment(
    folder: Path,
) -> None:
    far, elsewhere = folder / "other folder", folder / "elsewhere"
    to_far, options = f" --python-path '{far}'", targets.naming_options
    assert options(asked("here:build")) == options(asked("./here.py")) == ""
    assert options(asked("elsewhere/package/net.py:build")) == ""
    assert options(asked("far:build", far)) == options(asked("./here.py:build", far)) == to_far
    both = f"{to_far} --python-path {elsewhere}"
    assert options(asked("here:build", far, elsewhere)) == both
    placed = asked("far:build", far, target=Target(environment="vision"))
    assert options(placed) == f" --environment vision{to_far}"


def test_inputs_are_named_by_file_and_by_function_and_found_elsewhere(folder: Path) -> None:
    option = targets.inputs_option
    assert option(asked("here:build")) == ""
    assert option(asked("here:build", inputs="here:inputs")) == " --inputs here:inputs"
    saved = asked("here:build", inputs_file="/saved inputs.toml")
    assert option(saved) == " --inputs '/saved inputs.toml'"
    far = folder / "other folder"
    made = asked("here:build", inputs=f"{far / 'far.py'}:inputs")
    assert targets.naming_options(made) == f" --python-path '{far}'"
    assert option(made) == " --inputs far:inputs"


def test_a_model_of_a_list_is_named_alone(folder: Path) -> None:
    build = FactoryBuild(factory="far:build", path=str(folder), inputs="far:inputs")
    spec = msgspec.structs.replace(factories.request("team/net").model, build=build)
    request = msgspec.structs.replace(factories.request("team/net"), model=spec)
    assert targets.naming_options(request) == targets.inputs_option(request) == ""
    assert targets.naming_options(factories.request("BertModel")) == ""
