"""`compilewatch papers` with wrong input: one line that says what to do, and the exit status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.cli import group
from compilewatch.errors import CompilewatchError
from tests.aws import no_configuration
from tests.integration.extras.papers import opensearch_server

VARIABLES = ("OPENSEARCH_ENDPOINT", "BEDROCK_MODEL_ID", "TRAINIUM_ENDPOINT", "AWS_PROFILE")


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_configuration(tmp_path, monkeypatch)
    for name in (*VARIABLES, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPILEWATCH_OUTPUT_DIR", str(tmp_path / "outputs"))


def rejected(*arguments: str) -> str:
    """What a command says when it rejects its arguments."""
    with pytest.raises(CompilewatchError) as error:
        group.main(["papers", *arguments], standalone_mode=False)
    assert error.value.exit_status == 2
    assert "\n" not in str(error.value)
    return str(error.value)


RUN = ("run", "--paper-id", "gated-residual")


def test_no_model_is_chosen() -> None:
    assert "set BEDROCK_MODEL_ID" in rejected(*RUN)


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEDROCK_MODEL_ID", "some.model")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert "no AWS credentials found" in rejected(*RUN)


def test_a_limit_in_dollars_on_a_model_without_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEDROCK_MODEL_ID", "some.model")
    assert "no price of some.model" in rejected(*RUN, "--max-usd", "1")


@pytest.mark.parametrize("query", ['{"match": ', "[1]", '{"nonsense": {}}', "  ", "?!"])
def test_a_query_that_cannot_be_used(query: str) -> None:
    rejected("find", "--query", query)


def test_two_ways_to_select() -> None:
    assert "use one of" in rejected("find", "--query", "x", "--paper-id", "y")


def test_nothing_is_selected() -> None:
    assert "select papers with" in rejected("run", "--provider", "scripted")


def test_a_folder_that_does_not_exist() -> None:
    assert "does not exist" in rejected("find", "--folder", "/does/not/exist")


def test_an_empty_paper(tmp_path: Path) -> None:
    (tmp_path / "void.pdf").write_bytes(b"")
    arguments = ("run", "--folder", str(tmp_path), "--paper-id", "void", "--provider", "scripted")
    assert "no selected paper can be read" in rejected(*arguments)


def test_an_endpoint_that_is_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with opensearch_server.served({}, {}) as (url, _):
        monkeypatch.setenv("OPENSEARCH_ENDPOINT", url)
        monkeypatch.setenv("OPENSEARCH_INDEX", "elsewhere")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        assert "no index elsewhere" in rejected("find", "--query", "x")


@pytest.mark.parametrize("verb", ["check", "show"])
def test_a_paper_that_is_not_stored(verb: str) -> None:
    assert "no paper 'nothing'" in rejected(verb, "nothing")


def test_sandboxed_code_is_not_explained_outside_of_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The other sources are read before the error, which takes ten seconds.
    monkeypatch.setattr("compilewatch.api.choose.other_sources", lambda *_: ())
    with pytest.raises(CompilewatchError, match="no code of papers is stored"):
        group.main(["explain", "x", "--source", "papers"], standalone_mode=False)
