"""The public names of the package, what importing it costs, and what its functions reject."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import compilewatch
from compilewatch.api import choose
from compilewatch.config import load_settings
from compilewatch.errors import UsageError
from tests import factories


@pytest.mark.process
def test_importing_the_package_imports_no_other_module_of_it_and_no_package() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import compilewatch\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = done.stdout.split()
    assert {name.split(".")[0] for name in new} <= {"compilewatch", *sys.stdlib_module_names}
    assert [name for name in new if name.startswith("compilewatch.")] == []


def test_each_public_name_is_there_and_documented() -> None:
    for name in compilewatch.__all__:
        found = getattr(compilewatch, name)
        assert isinstance(found, str) or found.__doc__
        assert name in dir(compilewatch)
    with pytest.raises(AttributeError, match="verify"):
        compilewatch.verify  # noqa: B018


@pytest.mark.parametrize(
    ("model", "mode", "message"),
    [
        (object(), "eval", "by its name"),
        (lambda: None, "eval", "by its name"),
        ("BertModel", "test", "mode is 'eval' or 'train'"),
    ],
)
def test_a_fix_of_what_no_other_process_can_build_is_rejected(
    model: Any, mode: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compilewatch.fix(model, mode=mode)


def test_a_command_about_one_target_has_one_device() -> None:
    settings = load_settings({"devices": ("cpu", "cuda")})
    with pytest.raises(UsageError, match="name one with --device"):
        choose.one_target("dynamo", mode="eval", dynamic=None, settings=settings)


def test_a_command_about_one_model_names_the_components_of_a_pipeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = tuple(factories.spec(f"org/pipe#{name}", source="hub") for name in ("unet", "vae"))
    monkeypatch.setattr(choose, "choose_models", lambda *_, **__: (parts, ""))
    with pytest.raises(UsageError, match="name one of org/pipe#unet, org/pipe#vae"):
        choose.one_model(load_settings(), "org/pipe")
    monkeypatch.setattr(choose, "choose_models", lambda *_, **__: (parts[:1], ""))
    assert choose.one_model(load_settings(), "org/pipe#unet") == parts[0]
