"""Every line of the list of known mistakes still applies to the code."""

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
