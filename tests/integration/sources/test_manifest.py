from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import ConfigError
from compilewatch.records import ModelSpec
from compilewatch.sources.own import ManifestSource
from tests import factories


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models' configurations and a package with factories."""
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    for name, text in {
        "acorn/config.json": '{"model_type": "acorn"}',
        "broken/config.json": "{,}",
        "code/pkg/__init__.py": "raise RuntimeError('imported')",
        "code/pkg/nets.py": "raise RuntimeError('imported')\nmake = inputs = 1\n",
        "saved.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def models(folder: Path, text: str, transformers: Path | None = None) -> tuple[ModelSpec, ...]:
    path = folder / "models.toml"
    path.write_text(text)
    return ManifestSource(factories.places(transformers, models_file=str(path))).models()


BOTH = """
[[model]]
name = "team/acorn"
path = "acorn"
weights = true
revision = "v3"
inputs_file = "saved.toml"
[[model]]
name = "team/net"
factory = "pkg.nets:make"
python_path = "code"
inputs = "pkg.nets:inputs"
family = "nets"
task = "vision"
downloads = 12
"""


def test_a_folder_and_a_factory(team: Path, miniature: Path) -> None:
    factory, folder = models(team, BOTH, miniature)
    build: Any = folder.build
    assert build.config_file == str(team / "acorn" / "config.json")
    assert (build.weights, build.repo) == (True, str(team / "acorn"))
    assert (folder.family, folder.architecture) == ("acorn", "AcornForCausalLM")
    assert (folder.revision, folder.inputs_file) == ("v3", str(team / "saved.toml"))
    build = factory.build
    assert (build.factory, build.inputs) == ("pkg.nets:make", "pkg.nets:inputs")
    assert build.path == str(team / "code")
    assert (factory.family, factory.task, factory.downloads) == ("nets", "vision", 12)


def test_editing_the_factory_or_a_file_beside_it_changes_its_digest(team: Path) -> None:
    text = '[[model]]\nname = "n"\nfactory = "pkg.nets:make"\npython_path = "code"\n'

    def digest() -> str:
        build: Any = models(team, text)[0].build
        return str(build.source_sha256)

    first = digest()
    assert digest() == first
    (team / "code" / "pkg" / "nets.py").write_text("make = 1")
    second = digest()
    (team / "code" / "pkg" / "layers.py").write_text("")
    assert len({first, second, digest()}) == 3


def test_code_in_a_folder_runs_only_if_trusted(team: Path, miniature: Path) -> None:
    (team / "acorn" / "config.json").write_text('{"model_type": "x", "auto_map": {"A": "m.X"}}')
    text = '[[model]]\nname = "a"\npath = "acorn"\n'
    (refused,) = models(team, text, miniature)
    assert "trust = true" in (refused.skip_reason or "")
    (trusted,) = models(team, text + "trust = true\n", miniature)
    build: Any = trusted.build
    assert (trusted.skip_reason, build.trust_remote_code) == (None, True)


MODEL = '[[model]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema_version = 1\nx = \n", "at line 2"),
        ("", r"no [[model]] in it"),
        ("schema_version = 99\n" + MODEL, "schema_version 99 is newer than this compilewatch"),
        (MODEL + "colour = 1", "unknown field `colour` - at `$.model[0]`"),
        (MODEL + 'factroy = "a:b"', "did you mean 'factory'?"),
        (MODEL + 'factory = "json:f"\n' + MODEL + 'factory = "json:f"', "'a' is listed twice"),
    ],
)
def test_a_malformed_manifest_is_one_line_with_file_and_place(
    team: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        models(team, text)
    check_line(str(caught.value), says, team)


def check_line(message: str, says: str, team: Path) -> None:
    assert says in message
    assert str(team) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("", "model 'a': it needs either path or factory"),
        ('path = "acorn"\nfactory = "a:b"', "needs either path or factory"),
        ('path = "nowhere"', "nowhere does not exist"),
        ('path = "broken"', "broken/config.json: not JSON"),
        ('path = "acorn"\ninputs = "a:b"', "inputs can be used with factory"),
        ('path = "acorn"\ninputs_file = "x.toml"', "inputs_file must be"),
        ('factory = "pkg.nets"', "not of the form package.module:callable"),
        ('factory = "pkg.x:f"\npython_path = "code"', "there is no module pkg.x on"),
        ('factory = "json:f"\nweights = true', "weights can be used with path"),
    ],
)
def test_an_entry_that_makes_no_sense_is_that_models_error_alone(
    team: Path, miniature: Path, entry: str, says: str
) -> None:
    good = '\n[[model]]\nname = "good"\nfactory = "json:JSONDecoder"\n'
    wrong, other = models(team, MODEL + entry + good, miniature)
    assert (wrong.name, other.name, other.error) == ("a", "good", None)
    check_line(wrong.error or "", says, team)


def test_a_model_of_a_missing_package_is_skipped(team: Path) -> None:
    (spec,) = models(team, MODEL + 'factory = "nowhere.nets:f"\n')
    assert spec.error is None
    assert spec.skip_reason is not None
    assert "there is no module nowhere.nets on the Python path" in spec.skip_reason
    assert "`compilewatch env create nowhere --with nowhere`" in spec.skip_reason
