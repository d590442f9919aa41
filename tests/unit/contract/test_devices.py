"""The devices that requests may name."""

from __future__ import annotations

import pytest

from compilewatch.contract.targets import (
    canonical,
    check_device,
    declared,
    default_dtype,
    devices,
    target_label,
    target_label_value,
)
from compilewatch.errors import UsageError
from compilewatch.plan import check_targets, targets_of
from compilewatch.records import Dtype, Mode, Target


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
def test_a_device_has_one_spelling(text: str, name: str) -> None:
    assert canonical(text) == name


def test_cuda_is_the_first_row_and_the_cpu_is_none() -> None:
    assert declared("cuda") == devices()[0] == declared(f"cuda:{devices()[0].name}")
    assert declared("cpu") is None


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:0", "rocm:MI300", "xla", ""])
def test_an_unknown_device_names_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match="known: cpu, cuda, cuda:H100"):
        declared(text)


@pytest.mark.parametrize("name", ["inductor", "xla", "neuron"])
def test_targets_that_generate_code_need_the_device(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is not evaluated for cuda.*dynamo, export"):
        check_targets([Target(name=name, device="cuda")])


def test_a_type_that_the_device_lacks_is_rejected() -> None:
    check_device(Target(device="cuda:T4", dtype=Dtype.FLOAT16))
    with pytest.raises(UsageError, match="Tesla T4 has no bfloat16"):
        check_device(Target(device="cuda:T4", dtype=Dtype.BFLOAT16))


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
    ],
)
def test_labels_name_the_device(target: Target, label: str, value: str) -> None:
    assert target_label(target) == label
    assert target_label_value(target) == value


def test_the_default_type_is_that_of_the_configuration_on_a_device() -> None:
    assert default_dtype("cpu") is Dtype.FLOAT32
    assert default_dtype("cuda:A100") is Dtype.CONFIG
