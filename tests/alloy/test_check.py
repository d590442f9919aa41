"""The files of alloy/ as they are run, and what is said of each way to break them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.check_alloy.__main__ import problems
from scripts.check_alloy.checker import check, environment
from scripts.check_alloy.components import COMPONENTS, AttributeSpec, BlockSpec
from scripts.check_alloy.syntax import File, parse

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "alloy" / "config.alloy").read_text()
SINKS = {path.stem: path.read_text() for path in sorted((ROOT / "alloy" / "sinks").iterdir())}


def said(config: str, *sinks: str) -> list[str]:
    files = [parse("config.alloy", config)]
    files += [parse("sink.alloy", sink) for sink in sinks]
    return [str(problem) for problem in check(files)]


def test_the_files_are_fine_and_formatted() -> None:
    assert set(SINKS) == {"local", "cloud"}
    assert problems(ROOT / "alloy") == []


@pytest.mark.parametrize("sink", SINKS)
def test_the_files_load_with_each_sink(sink: str) -> None:
    assert said(CONFIG, SINKS[sink]) == []


def test_the_secrets_named_are_those_that_are_read() -> None:
    files = [parse(name, text) for name, text in {"config": CONFIG, **SINKS}.items()]
    lines = (ROOT / "alloy" / "env.secrets.example").read_text().splitlines()
    given = [line for line in lines if line and not line.startswith("#")]
    assert all(line.endswith("=") for line in given), "an example holds no value"
    assert {line.removesuffix("=") for line in given} == environment(files)


BROKEN = {
    "component misspelt": (
        'loki.source.file "runs"',
        'loki.source.fille "runs"',
        "loki.source.fille is no component known of Alloy v1.18.1",
    ),
    "label missing": ('loki.process "events"', "loki.process", "loki.process needs a label"),
    "attribute misspelt": (
        "honor_labels    = true",
        "honour_labels   = true",
        "honour_labels is no attribute of prometheus.scrape",
    ),
    "block misspelt": ("stage.labels {", "stage.label {", "stage.label is no block of"),
    "attribute as block": (
        "	http {",
        "	forward_to {",
        "forward_to is an attribute of loki.source.api",
    ),
    "no such component": (
        "	forward_to = [loki.write.sink.receiver]",
        "	forward_to = [loki.write.snik.receiver]",
        "loki.write.snik.receiver: there is no loki.write.snik",
    ),
    "no such export": (
        "	forward_to = [loki.write.sink.receiver]",
        "	forward_to = [loki.write.sink.input]",
        "loki.write exports no input",
    ),
    "no such name": (
        "	forward_to = [loki.write.sink.receiver]",
        "	forward_to = [sink]",
        "sink stands for nothing",
    ),
    "metrics to a receiver of logs": (
        "	forward_to      = [prometheus.remote_write.sink.receiver]",
        "	forward_to      = [loki.write.sink.receiver]",
        "forward_to is a MetricsReceiver, not a LogsReceiver",
    ),
    "required attribute missing": (
        '		source            = "ts"\n',
        "",
        "stage.timestamp needs source",
    ),
    "required attribute of a component missing": (
        "	forward_to = [loki.process.events.receiver]\n",
        "",
        "loki.source.file needs forward_to",
    ),
    "string for a bool": (
        "use_incoming_timestamp = true",
        'use_incoming_timestamp = "true"',
        'use_incoming_timestamp is a bool, not "true"',
    ),
    "string for a number": (
        "listen_port    = 3500",
        'listen_port    = "3500"',
        'listen_port is an int, not "3500"',
    ),
    "number for a string": (
        'listen_address = "0.0.0.0"',
        "listen_address = 0.0",
        "listen_address is a string, not 0.0",
    ),
    "no duration": ('"2m"', '"2 minutes"', 'scrape_interval is a duration, not "2 minutes"'),
    "days are no duration": ('"168h"', '"7d"', 'ignore_older_than is a duration, not "7d"'),
    "no size": ('"1KiB"', '"8 kilo"', 'limit is a size, not "8 kilo"'),
    "no selector": ('event=""}`', "event=}`", "selector is a selector, not "),
    "no regular expression": ("up|process", "(up|process", "regex is a regex, not "),
    "no label": (
        'level = "warning"}',
        '"le-vel" = "warning"}',
        'values is by label, and "le-vel" is none',
    ),
    "no label to drop": ('["filename"]', '["file name"]', 'values is a label, not "file name"'),
    "target without an address": (
        '{__address__ = "pushgateway:9091"}',
        '{address = "pushgateway:9091"}',
        "an element of targets needs __address__",
    ),
    "string for a list": (
        'values = ["filename"]',
        'values = "filename"',
        'values is a list(label), not "filename"',
    ),
    "list for a string": (
        'job_name        = "pushgateway"',
        'job_name        = ["pushgateway"]',
        "job_name is a string, not a list",
    ),
    "value that is not allowed": (
        '"skip"',
        '"ignore"',
        'action_on_failure is one of skip, fudge, not "ignore"',
    ),
    "unknown function": (
        '"pushgateway:9091"}',
        'env("GATEWAY")}',
        "env is no function known of Alloy v1.18.1",
    ),
    "function of another type": (
        "listen_port    = 3500",
        'listen_port    = sys.env("PORT")',
        "listen_port is an int, not a string",
    ),
    "attribute twice": (
        '	job_name        = "alloy"',
        '	job_name        = "alloy"\n	job_name        = "alloy"',
        "job_name stands twice in prometheus.scrape",
    ),
    "field twice": (
        'event = "unparsed", level',
        'event = "unparsed", event',
        "event stands twice in values",
    ),
    "block twice": (
        "	http {",
        "	http { }\n\n	http {",
        "http stands twice in loki.source.api",
    ),
    "attribute outside": (
        "loki.source.api",
        "level = 1\n\nloki.source.api",
        "level stands outside any component",
    ),
    "required block missing": (
        '		rule {\n			limit       = "1KiB"\n'
        '			source_type = "structured_metadata"\n		}\n',
        "",
        "stage.truncate needs rule",
    ),
}


FURTHER_ON = {
    "required attribute missing": -1,
    "required attribute of a component missing": -5,
    "required block missing": -1,
    "block twice": 2,
}
"""Where the line named is not the first one that differs: how many lines from it."""


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named_with_its_line(what: str) -> None:
    right, wrong, message = BROKEN[what]
    assert right in CONFIG
    broken = CONFIG.replace(right, wrong, 1)
    pairs = zip(CONFIG.splitlines(), broken.splitlines(), strict=False)
    changed = next(line for line, (old, new) in enumerate(pairs, start=1) if old != new)
    line = changed + FURTHER_ON.get(what, 0)
    found = said(broken, SINKS["local"])
    assert any(each.startswith(f"config.alloy:{line}: {message}") for each in found), found


def test_two_sinks_at_once_are_refused() -> None:
    found = said(CONFIG, *SINKS.values())
    assert [each.split(": ", 1)[1].split(" at ")[0] for each in found] == [
        "prometheus.remote_write.sink is already defined",
        "loki.write.sink is already defined",
    ]


def test_no_sink_is_refused() -> None:
    assert any("there is no loki.write.sink" in each for each in said(CONFIG))


def test_what_nothing_uses_is_refused() -> None:
    spare = 'loki.write "spare" {\n\tendpoint {\n\t\turl = "http://loki"\n\t}\n}\n'
    assert said(CONFIG, SINKS["local"] + spare) == [
        f"sink.alloy:{SINKS['local'].count(chr(10)) + 1}: loki.write.spare is used by nothing"
    ]


def test_a_url_is_one() -> None:
    found = said(CONFIG, SINKS["local"].replace("http://loki:3100", "loki:3100"))
    assert found == ['sink.alloy:11: url is a url, not "loki:3100/loki/api/v1/push"']


def test_a_section_takes_no_label() -> None:
    logging = 'logging "all" {\n\tlevel = "warn"\n}\n'
    assert said(CONFIG + logging, SINKS["local"])[0].endswith("logging takes no label")
    assert said(CONFIG + logging.replace(' "all"', ""), SINKS["local"]) == []


@pytest.mark.parametrize(
    "value",
    [
        'coalesce(sys.env("A"), "b")',
        "constants.hostname",
        'string.format("%s", constants.os)',
        'encoding.from_json(sys.env("A"))["job"]',
        '("a" + "b")',
        '"a\\u00e9\\x41\\"\\n"',
        "`raw`",
    ],
)
def test_a_value_may_be_computed(value: str) -> None:
    assert said(CONFIG.replace('"alloy"\n\tscrape', f"{value}\n\tscrape"), SINKS["local"]) == []


def test_all_types_of_the_table_are_known() -> None:
    plain = {"any", "bool", "duration", "int", "number", "secret", "size", "string"}
    plain |= {"label", "labels", "regex", "selector", "url"}
    plain |= {"LogsReceiver", "MetricsReceiver", "RelabelRules"}
    for attribute in _attributes(COMPONENTS.values()):
        type = attribute.type
        while type.startswith(("list(", "map(")):
            type = type.partition("(")[2][:-1]
        assert type in plain or "|" in type or type.startswith("target:")


def _attributes(specs: object) -> Iterator[AttributeSpec]:
    assert not isinstance(specs, BlockSpec)
    for spec in specs:  # type: ignore[attr-defined]
        yield from spec.attributes.values()
        yield from _attributes(spec.blocks.values())


def test_the_command_fails_with_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.check_alloy"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            check=False,
        )
        assert not done.stderr
        return done.returncode, done.stdout

    assert run() == (0, "")
    assert run(str(tmp_path)) == (
        1,
        f"{tmp_path}/config.alloy: No such file or directory: name the folder that holds "
        "config.alloy and sinks/\n",
    )
    (tmp_path / "config.alloy").write_text(CONFIG)
    assert "no sink" in run(str(tmp_path))[1]
    (tmp_path / "sinks").mkdir()
    (tmp_path / "sinks" / "a.alloy").write_text(SINKS["local"].replace('"sink" {', '"sink {', 1))
    assert run(str(tmp_path)) == (1, f"{tmp_path}/sinks/a.alloy:3: string literal not terminated\n")


def test_a_tree_says_where_things_begin_and_end() -> None:
    file: File = parse("a", 'a.b "c" {\n\td = [\n\t\t1,\n\t]\n}\n')
    (block,) = file.body
    assert (block.name, block.line, block.last_line) == ("a.b", 1, 5)
