"""The public names of the package, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import compilewatch


@pytest.mark.process
def test_importing_the_package_imports_no_other_module_of_it_and_no_package() -> None:
    code = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        "import compilewatch\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert new <= {"compilewatch", *sys.stdlib_module_names}
    assert [n for n in json.loads(done.stdout) if n.startswith("compilewatch.")] == []


@pytest.mark.parametrize("name", compilewatch.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(compilewatch, name)
    assert isinstance(found, str) or found.__doc__
    assert name in dir(compilewatch)


def test_another_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="verify"):
        compilewatch.verify  # noqa: B018
