"""Every line of the list of known mistakes still applies to the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import mutants

LISTED = mutants.listed()


@pytest.mark.parametrize("number", range(len(LISTED)))
def test_a_mistake_can_be_put_in_and_its_tests_exist(number: int) -> None:
    mutant = LISTED[number]
    text = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, mutant.reason
    assert mutant.new != mutant.old
    for test in mutant.tests:
        path, _, name = test.partition("::")
        source = mutants.ROOT / path
        assert source.exists(), test
        if name:
            assert f"def {name.partition('[')[0]}(" in source.read_text(encoding="utf-8"), test


def test_words_that_no_line_contains_run_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments pytest would run everything."""
    assert mutants.main(["--help"]) == 2
    assert capsys.readouterr().err == "no line of tests/mutants.toml contains --help\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("pytest.skip('bubblewrap is missing')", mutants.BROKEN),
        ("pass", mutants.SURVIVED),
        ("assert Path('changed.txt').read_text() == 'right'", mutants.CAUGHT),
    ],
)
def test_a_skipped_test_does_not_say_that_a_mistake_survives(
    tmp_path: Path, body: str, outcome: str
) -> None:
    (tmp_path / "changed.txt").write_text("right", encoding="utf-8")
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--matrix', action='store_true')",
        encoding="utf-8",
    )
    (tmp_path / "test_code.py").write_text(
        f"import pytest\nfrom pathlib import Path\ndef test():\n    {body}\n", encoding="utf-8"
    )
    mutant = mutants.Mutant(
        file="changed.txt", old="right", new="wrong", tests=("test_code.py",), reason="a test"
    )
    found, said = mutants._tried(tmp_path, mutant)
    assert found == outcome
    assert ("bubblewrap is missing" in said) == (outcome == mutants.BROKEN)
