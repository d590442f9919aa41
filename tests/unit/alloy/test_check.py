"""The files of alloy/ as they are run, and what is said of a mistake in them."""

import shutil
from pathlib import Path

from scripts.check_alloy import main, parse

ROOT = Path(__file__).parents[3]
ALLOY = ROOT / "alloy"


def test_the_files_are_fine_with_each_sink() -> None:
    assert {path.stem for path in (ALLOY / "sinks").iterdir()} == {"local", "cloud"}
    assert main(ALLOY) == ""


MISTAKES = (
    ("events.receiver", "evnets.receiver", "loki.process.evnets.receiver resolves to nothing"),
    ("loki.source.file", "loki.source.fille", "no such component: loki.source.fille runs"),
    ('"1m"', 'sys.emv("A")', "sys.emv resolves to nothing"),
    ('"pushgateway"\n', '"pushgateway\n', 'expected name or string or number or [ or {, got "'),
)


def test_a_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    copy = shutil.copytree(ALLOY, tmp_path / "alloy")
    config = copy / "config.alloy"
    text = config.read_text()
    for before, after, message in MISTAKES:
        assert before in text
        config.write_text(text.replace(before, after, 1))
        wrong = main(copy)
        assert wrong.startswith(f"{config}:")
        assert wrong.endswith(message)
        assert wrong.count("\n") == 0


def test_the_secrets_named_are_those_that_are_read() -> None:
    read = {
        call.arguments[0]
        for path in ALLOY.rglob("*.alloy")
        for call in parse(path.name, path.read_text()).calls
        if call.name == "sys.env" and call.arguments
    }
    lines = (ALLOY / "env.secrets.example").read_text().splitlines()
    given = [line for line in lines if line and not line.startswith("#")]
    assert all(line.endswith("=") for line in given), "an example holds no value"
    assert {line.removesuffix("=") for line in given} == read
