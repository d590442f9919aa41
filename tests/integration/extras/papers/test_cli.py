"""`compilewatch papers` with wrong input: one line that says what to do, and the exit status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.cli import group
from compilewatch.errors import CompilewatchError
from tests.aws import no_configuration

VARIABLES = ("OPENSEARCH_ENDPOINT", "BEDROCK_MODEL_ID", "TRAINIUM_ENDPOINT", "AWS_PROFILE")
RUN = ("run", "--paper-id", "gated-residual")
MODEL = {"BEDROCK_MODEL_ID": "some.model", "AWS_REGION": "us-east-1"}


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_configuration(tmp_path, monkeypatch)
    for name in (*VARIABLES, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPILEWATCH_OUTPUT_DIR", str(tmp_path / "outputs"))


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (RUN, {}, "set BEDROCK_MODEL_ID"),
        (RUN, MODEL, "no AWS credentials found"),
        ((*RUN, "--max-usd", "1"), MODEL, "no price of some.model"),
        *(
            (("find", "--query", query), {}, "")
            for query in ('{"match": ', "[1]", '{"nonsense": {}}', "  ", "?!")
        ),
        (("find", "--query", "x", "--paper-id", "y"), {}, "use one of"),
        (("run", "--provider", "scripted"), {}, "select papers with"),
        (("find", "--folder", "/does/not/exist"), {}, "does not exist"),
        (
            ("run", "--folder", ".", "--paper-id", "void", "--provider", "scripted"),
            {},
            "no selected paper can be read",
        ),
        (("check", "nothing"), {}, "no paper 'nothing'"),
        (("show", "nothing"), {}, "no paper 'nothing'"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: tuple[str, ...],
    variables: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "void.pdf").write_bytes(b"")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = tuple(str(tmp_path) if part == "." else part for part in arguments)
    with pytest.raises(CompilewatchError) as error:
        group.main(["papers", *arguments], standalone_mode=False)
    assert error.value.exit_status == 2
    assert "\n" not in str(error.value)
    assert message in str(error.value)


def test_sandboxed_code_is_not_explained_outside_of_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The other sources are read before the error, which takes ten seconds.
    monkeypatch.setattr("compilewatch.api.choose.other_sources", lambda *_: ())
    with pytest.raises(CompilewatchError, match="no code of papers is stored"):
        group.main(["explain", "x", "--source", "papers"], standalone_mode=False)
