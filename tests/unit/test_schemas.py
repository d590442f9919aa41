"""The JSON schemas that editors use: they accept the shipped files, and reject mistakes."""

import datetime
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([ROOT / "compilewatch.toml", *ROOT.glob("inputs/**/*.toml")])


def _named_schema(file: Path) -> Path:
    """The schema that the first line of a file names."""
    directive, _, name = file.read_text(encoding="utf-8").splitlines()[0].partition(" ")
    assert directive == "#:schema", f"{file} names no schema in its first line"
    return (file.parent / name).resolve()


def _plain(value: Any) -> Any:
    """TOML's values as JSON has them: dates are strings."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _errors(schema: Path, text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(
        json.loads(schema.read_text(encoding="utf-8")),
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )
    return [error.message for error in validator.iter_errors(_plain(tomllib.loads(text)))]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_the_shipped_files_fit_their_schemas(file: Path) -> None:
    assert _errors(_named_schema(file), file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("settings", "jbos = 4"),
        ("settings", "jobs = -1"),
        ("settings", "depth = 'shallow'"),
        ("settings", "[deadlines]\ncompiel_seconds = 1.0"),
        ("expectations", "[[expectation]]\nmodel = 'X'\nstatus = 'fails'\nreason = 'r'"),
        ("expectations", "[[expectation]]\nmodel = 'X'\nstatus = 'error'\nreason = 'r'"),
        ("models", "[[model]]\nname = 'x'\nfactroy = 'a:b'"),
        ("overrides", "[[override]]\nclasses = ['X']\ndate = 2026-01-01"),
        ("remote_code", "[[allow]]\nrepository = 'a/b'\nrevision = 'main'\nreason = ''\ndate = ''"),
        ("trainium_prices", "schema_version = 2"),
    ],
)
def test_mistakes_are_found(schema: str, text: str) -> None:
    assert _errors(ROOT / f"docs/schemas/{schema}.schema.json", text)
