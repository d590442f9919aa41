from __future__ import annotations

from typing import Any

import pytest

from compilewatch.contract.targets import target_label
from compilewatch.errors import UsageError
from compilewatch.plan import (
    environments_of_targets,
    missing_package,
    needs,
    place,
    place_model,
    possible_environments,
    without_adapter,
)
from compilewatch.records import ConfigBuild, Environment, LibraryBuild, Mode, Part, Target
from tests import factories

DEFAULT = factories.environment()
OLDER = factories.environment(name="torch-2.9", torch="2.9.0")
XLA = factories.environment(name="xla", packages={"torch-xla": "2.9.0"})
NEURON = factories.environment(name="neuron", packages={"neuronx-cc": "2", "torch-xla": "2.9.0"})
AGENT = factories.environment(packages={"neuronx-cc": "2"})
ALL = [Target(name=name) for name in ("dynamo", "xla", "neuron")]


def _placed(named: tuple[str, ...], *known: Environment) -> list[str]:
    return [f"{t.name} in {t.environment}" for t in place(ALL, named, known)]


@pytest.mark.parametrize(
    ("named", "known", "expected"),
    [
        ((), (DEFAULT, XLA, NEURON), ["dynamo in default", "xla in xla", "neuron in neuron"]),
        # Neither can run anywhere: at home, where what is missing is said.
        ((), (DEFAULT,), ["dynamo in default", "xla in xla", "neuron in neuron"]),
        # The capture that Neuron needs can be made in xla.
        ((), (DEFAULT, XLA), ["dynamo in default", "xla in xla", "neuron in xla"]),
        ((), (AGENT,), ["dynamo in default", "xla in xla", "neuron in default"]),
        (
            ("default", "xla"),
            (DEFAULT, XLA),
            ["dynamo in default", "dynamo in xla", "xla in xla", "neuron in xla"],
        ),
        (
            ("default", "torch-2.9"),
            (DEFAULT, OLDER),
            ["dynamo in default", "dynamo in torch-2.9", "xla in xla", "neuron in neuron"],
        ),
    ],
)
def test_where_each_target_is_evaluated(
    named: tuple[str, ...], known: tuple[Environment, ...], expected: list[str]
) -> None:
    assert _placed(named, *known) == expected


CPU_BUILD = factories.environment(torch="2.15.0+cpu", cuda=None)
CUDA_BUILD = factories.environment(name="cuda", torch="2.15.0+cu132", cuda="13.2")


@pytest.mark.parametrize("known", [(CPU_BUILD,), (CPU_BUILD, CUDA_BUILD)])
@pytest.mark.parametrize("name", ["dynamo", "export"])
def test_training_on_a_declared_device_needs_a_cuda_build(
    name: str, known: tuple[Environment, ...]
) -> None:
    cases = [
        Target(name=name, mode=mode, device=device)
        for device in ("cpu", "cuda:A100")
        for mode in (Mode.EVAL, Mode.TRAIN)
    ]
    placed = [target.environment for target in place(cases, (), known)]
    assert placed == ["default", "default", "default", "cuda"]
    own = factories.environment(cuda="13.2")
    assert {t.environment for t in place(cases, (), (own, CUDA_BUILD))} == {"default"}
    assert [t.environment for t in place(cases, ("default",), known)] == ["default"] * 4
    assert "compilewatch env create cuda" in needs(place(cases, (), known)[-1])


def test_an_environment_that_is_named_must_exist() -> None:
    with pytest.raises(UsageError, match=r"no environment 'tpu'; known: default; .*create tpu"):
        _placed(("tpu",), DEFAULT)


def test_one_label_never_stands_for_two_environments() -> None:
    known = (factories.environment(), factories.environment(name="vision"))
    with pytest.raises(UsageError, match="default and vision cannot be named together"):
        place([Target()], ("default", "vision"), known)
    assert [target.environment for target in place([Target()], ("vision",), known)] == ["vision"]


def test_only_what_is_needed_is_looked_at() -> None:
    assert environments_of_targets(["dynamo"], ()) == ("default",)
    assert environments_of_targets(["dynamo", "neuron"], ()) == ("default", "neuron", "xla")
    assert environments_of_targets(["neuron"], ("a", "a")) == ("a",)
    assert environments_of_targets(["dynamo"], (), ["cpu", "cuda"]) == ("default", "cuda")
    assert environments_of_targets(["dynamo"], ("a",), ["cuda"]) == ("a",)


def test_a_label_names_an_environment_that_is_not_the_default_one() -> None:
    labels = [target_label(t) for t in place(ALL, (), (DEFAULT, XLA))]
    assert labels == ["dynamo", "xla", "neuron@xla"]
    older = Target(mode=Mode.TRAIN, environment="torch-2.9")
    assert target_label(older) == "dynamo/train@torch-2.9"


TIMM = {"classes": ["XModel"], "packages": ["timm"]}


@pytest.mark.parametrize(
    ("line", "target", "environment", "expected"),
    [
        (TIMM, Target(), DEFAULT, "vision"),
        (TIMM, Target(device="cuda"), DEFAULT, "vision"),
        # The default environment has the package, or the release is another one.
        (TIMM, Target(), factories.environment(packages={"timm": "1"}), "default"),
        ({**TIMM, "transformers": ">=99"}, Target(), DEFAULT, "default"),
        ({**TIMM, "classes": ["OtherModel"]}, Target(), DEFAULT, "default"),
        # Nothing has it: the model runs where it would, and says what is missing.
        ({**TIMM, "packages": ["natten"]}, Target(), DEFAULT, "default"),
        # A person or a target chose the environment.
        (TIMM, Target(environment="torch-2.9"), DEFAULT, "torch-2.9"),
    ],
)
def test_a_model_is_placed_where_its_packages_are(
    line: dict[str, Any], target: Target, environment: Environment, expected: str
) -> None:
    spec = factories.spec("XModel", skip_reason="needs timm")

    found, placed = place_model(spec, target, [line], {"default": environment})

    assert placed.environment == expected
    assert found.skip_reason == (None if expected == "vision" else "needs timm")


@pytest.mark.parametrize("class_name", [None, "XModel"])
def test_a_reason_that_is_not_about_packages_is_kept(class_name: str | None) -> None:
    build = ConfigBuild(config_file="", config_sha256="", class_name=class_name)
    spec = factories.spec("org/x", build=build, architecture=None, skip_reason="gated: no token")

    placed = place_model(spec, Target(), [TIMM], {"default": DEFAULT})

    assert placed == (spec, Target())


def test_a_model_of_an_unknown_class_needs_no_packages() -> None:
    """Every override may be one of its class, so that none says which packages it needs."""
    build = ConfigBuild(config_file="/c", config_sha256="")
    spec = factories.spec("org/x", build=build, architecture=None)

    assert place_model(spec, Target(), [TIMM], {"default": DEFAULT}) == (spec, Target())


def test_an_environment_with_more_packages_is_not_named_by_the_label() -> None:
    assert target_label(Target(environment="vision")) == "dynamo"
    assert target_label(Target(name="xla", environment="vision")) == "xla@vision"


def test_environments_of_packages_are_looked_at_unless_others_are_named() -> None:
    assert possible_environments(["dynamo"], ()) == ("default", "vision", "libraries")
    assert possible_environments(["dynamo"], ("torch-2.9",)) == ("torch-2.9",)


VISION = factories.environment(name="vision", packages={"timm": "1"})
LIBRARIES = factories.environment(name="libraries", packages={"timm": "1", "diffusers": "1"})


@pytest.mark.parametrize(
    ("library", "known", "expected"),
    [
        ("timm", (VISION, LIBRARIES), "vision"),
        # An environment that exists comes before one that would have to be created.
        ("timm", (LIBRARIES,), "libraries"),
        ("timm", (), "vision"),
        ("diffusers", (VISION,), "libraries"),
    ],
)
def test_a_model_of_a_library_is_placed_where_the_library_is(
    library: str, known: tuple[Environment, ...], expected: str
) -> None:
    spec = factories.spec("m", build=LibraryBuild(library=library, name="m"))
    there = {environment.name: environment for environment in (DEFAULT, *known)}
    assert place_model(spec, Target(), [], there)[1].environment == expected


def test_an_environment_without_the_library_says_how_one_with_it_is_made() -> None:
    spec = factories.spec("m", build=LibraryBuild(library="open_clip", name="ViT-B-32"))
    why = missing_package(spec, OLDER)
    assert why is not None
    assert "'torch-2.9' lacks: compilewatch env create NAME --torch 2.9.0" in why
    assert why.endswith("--with open-clip-torch")
    there = factories.environment(packages={"open-clip-torch": "3"})
    assert missing_package(spec, there) is None
    assert missing_package(factories.spec("BertModel"), OLDER) is None


ADAPTED = factories.spec(
    "org/lora",
    build=ConfigBuild(
        config_file="/c",
        config_sha256="c",
        class_name="BertModel",
        adapter_file="/a",
        packages=("peft",),
    ),
    part=Part.WHOLE,
)
PEFT = factories.environment(name="libraries", packages={"peft": "0.21"})


def test_an_adapter_moves_its_model_to_the_environment_that_has_peft() -> None:
    there = {"default": DEFAULT, "libraries": PEFT}
    assert without_adapter(ADAPTED, Target(), there, named=False) == ADAPTED
    spec, target = place_model(ADAPTED, Target(), [], there)
    assert (spec, target.environment) == (ADAPTED, "libraries")


@pytest.mark.parametrize(
    ("target", "known", "named"),
    [
        (Target(), {"default": DEFAULT}, False),
        # It was created before PEFT was one of its packages.
        (Target(), {"default": DEFAULT, "libraries": LIBRARIES}, False),
        # A person named another one.
        (Target(), {"default": DEFAULT, "libraries": PEFT}, True),
        (Target(environment="torch-2.9"), {"torch-2.9": OLDER, "libraries": PEFT}, True),
    ],
)
def test_where_peft_is_not_only_the_base_is_evaluated(
    target: Target, known: dict[str, Environment], named: bool
) -> None:
    spec = without_adapter(ADAPTED, target, known, named=named)
    assert isinstance(spec.build, ConfigBuild)
    assert (spec.build.adapter_file, spec.part) == (None, Part.BASE)
    assert place_model(spec, target, [], known) == (spec, target)
    assert missing_package(spec, known[target.environment]) is None


def test_every_package_that_a_model_lacks_is_named() -> None:
    build = ConfigBuild(config_file="/c", config_sha256="c", packages=("timm", "peft"))
    spec = factories.spec("org/x", build=build)
    why = missing_package(spec, OLDER)
    assert why is not None
    assert "needs the packages peft and timm" in why
    assert why.endswith("--with peft,timm")


def test_a_named_environment_with_peft_gets_the_adapter() -> None:
    own = factories.environment(name="own", packages={"peft": "0.21"})
    target = Target(environment="own")
    assert without_adapter(ADAPTED, target, {"own": own}, named=True) == ADAPTED
    assert missing_package(ADAPTED, own) is None
