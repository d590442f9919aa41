import itertools
import tomllib
from pathlib import Path

import msgspec
import pytest

from compilewatch import config
from compilewatch.config import FILE, Settings, load_settings
from compilewatch.errors import ConfigError
from compilewatch.records import Deadlines, Depth, Mode

CHECKOUT = Path(__file__).parents[2]


def _load(folder: Path, text: str | None = None, **environ: str) -> Settings:
    if text is not None:
        (folder / FILE).write_text(text)
    return load_settings(folder=folder, environ=environ)


@pytest.fixture(autouse=True)
def no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from the checkout, whose file would be read too."""
    monkeypatch.setattr(config, "CHECKOUT", tmp_path / "no checkout")


def test_the_documented_file_has_every_setting_with_its_default() -> None:
    """compilewatch.toml is documentation that can drift: hold it to the code."""
    documented = tomllib.loads((CHECKOUT / FILE).read_text())
    defaults = msgspec.json.decode(msgspec.json.encode(Settings()))
    assert documented == defaults
    assert list(documented) == list(defaults), "in the same order, to be compared by eye"

    lines = (CHECKOUT / FILE).read_text().splitlines()
    silent = [
        line
        for above, line in itertools.pairwise(lines)
        if line[:1].isalpha() and not above.startswith("#") and not line.startswith("modes")
    ]
    assert silent == []


def test_later_sources_win(tmp_path: Path) -> None:
    text = "jobs = 3\ntop = 10\ndepth = 'reduced'"
    (tmp_path / FILE).write_text(text)
    settings = load_settings(
        {"top": 5, "depth": None},
        folder=tmp_path,
        environ={"COMPILEWATCH_JOBS": "4", "COMPILEWATCH_TOP": "7", "HOME": "/"},
    )
    assert (settings.jobs, settings.top, settings.depth) == (4, 5, Depth.REDUCED)


def test_the_nearest_file_above_counts_and_else_that_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, inner = tmp_path / "checkout", tmp_path / "a" / "b"
    for folder in (checkout, inner):
        folder.mkdir(parents=True)
    settings = _load(tmp_path)
    assert (settings.top, settings.output_dir) == (25, str(tmp_path / "outputs"))
    assert settings.jobs >= 1
    (checkout / FILE).write_text("top = 9")
    monkeypatch.setattr(config, "CHECKOUT", checkout)
    settings = _load(inner)
    assert (settings.top, settings.output_dir) == (9, str(checkout / "outputs"))
    assert _load(tmp_path, "top = 3").top == 3
    assert _load(inner).top == 3
    assert _load(inner, "top = 4").top == 4


def test_paths_are_relative_to_where_they_are_written(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / FILE).write_text('output_dir = "results"\ninputs = "data"\nmodels_file = "m.toml"')
    settings = load_settings({"output_dir": None}, folder=inner, environ={})
    assert settings.output_dir == str(tmp_path / "results")
    assert settings.models_file == str(tmp_path / "m.toml")
    assert settings.overrides_dir == str(tmp_path / "data" / "overrides")
    assert settings.pulled_dir == str(tmp_path / "data" / "pulled")
    assert settings.papers.rules_file == str(tmp_path / "data" / "papers" / "rules.toml")
    flagged = load_settings({"output_dir": "mine"}, folder=inner, environ={})
    assert flagged.output_dir == str(inner / "mine")
    variable = _load(inner, COMPILEWATCH_INPUTS="theirs")
    assert variable.overrides_dir == str(inner / "theirs" / "overrides")


def test_variables_are_lists_flags_and_numbers(tmp_path: Path) -> None:
    settings = _load(
        tmp_path,
        "memory_limit_gib = 1.5\n[deadlines]\ncompile_seconds = 30",
        COMPILEWATCH_DEADLINES_TOTAL_SECONDS="90",
        COMPILEWATCH_MODES="eval, train",
        COMPILEWATCH_DYNAMIC="true",
        COMPILEWATCH_SINKS="",
        COMPILEWATCH_PLAIN_TORCH="1",  # of the workers, and no setting
    )
    assert settings.deadlines == Deadlines(compile_seconds=30.0, total_seconds=90.0)
    assert (settings.modes, settings.sinks) == ((Mode.EVAL, Mode.TRAIN), ())
    assert settings.dynamic is True
    assert settings.memory_limit_bytes == 1610612736


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jbos = 2", "unknown setting 'jbos'; did you mean 'jobs'?"),
        ("jobs = 'two'", "jobs: expected `int`"),
        ("top = 0", "top: "),
        ("depth = 'half'", "depth: .*use full, reduced"),
        ("[deadlines]\ncompile = 3", "deadlines: unknown setting 'compile'"),
        ("[deadlines]\ncompile_seconds = 0", "deadlines.compile_seconds: expected `float` > 0"),
        ("deadlines = 3", "deadlines: expected a table"),
        ("jobs = ", "not valid TOML"),
        ("\udcff\udcfe", "not valid TOML"),
        ("loki_url = 'x'", r"loki_url: write it as `url` in the table \[loki\]"),
        ("[papers]\nmodle = 'x'", "papers: unknown setting 'modle'; did you mean 'model'?"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / FILE).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message) as caught:
        _load(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / FILE))
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_or_flag_is_named(tmp_path: Path) -> None:
    for name, value, message in (
        ("COMPILEWATCH_JOB", "2", "COMPILEWATCH_JOB: unknown setting 'job'; did you mean 'jobs'"),
        ("COMPILEWATCH_JOBS", "two", "COMPILEWATCH_JOBS: jobs: expected `int`"),
        ("COMPILEWATCH_DYNAMIC", "perhaps", "COMPILEWATCH_DYNAMIC: dynamic: invalid enum value"),
    ):
        with pytest.raises(ConfigError, match=message):
            _load(tmp_path, **{name: value})
    for name, value in (("depth", "half"), ("no_such", "1")):
        with pytest.raises(ConfigError, match=f"the command line: .*{name}"):
            load_settings({name: value}, folder=tmp_path, environ={})


def test_tables_variables_and_flags_name_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "compilewatch.toml").write_text('loki.username = "me"\n[s3]\nurl = "s3://a/b"\n')
    settings = load_settings(
        {"s3_endpoint_url": "http://minio", "deadlines": Deadlines(eager_seconds=9.0)},
        folder=tmp_path,
        environ={"COMPILEWATCH_LOKI_URL": "http://loki:3100"},
    )
    assert (settings.loki.url, settings.loki.username) == ("http://loki:3100", "me")
    assert (settings.s3.url, settings.s3.endpoint_url) == ("s3://a/b", "http://minio")
    assert settings.deadlines == Deadlines(eager_seconds=9.0)
