"""The words that the project uses for its terms (docs/glossary.md), in documents and dashboards.

Each pattern finds one way of saying that has a plain term of PyTorch, Prometheus or Jenkins, and
is precise enough to allow the word elsewhere ("asks for confirmation", "the whole number").
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PLAIN: Mapping[str, str] = {
    r"compil(es?|ed|ing) whole|captur(es?|ed|ing) whole|\bwhole (graph|model)s?\b"
    r"|(run|plan|graph|library) is whole": "without graph breaks; a single graph; complete",
    r"\b(a|the|their|its) whole (run|plan|library|answer|configuration|way)\b|\bthe whole\b(?! \w)"
    r"|replaced whole": "complete",
    r"\bat home\b(?!`)|\baway from home\b|\bhas a home\b": "in its default environment",
    r"\bpatien(ce|tly)\b": "timeout, deadline, retry policy",
    r"\bmend(s|ed|ing)?\b": "fix, update",
    r"\bcur(e|es|ed|ing)\b": "fix; removes; left without graph breaks",
    r"\bproven\b": "verified",
    r"\brefus(e|es|ed|al|ing)\b": "rejects, rejected",
    r"\b(is|are|was) gone\b|\bto be had\b": "was deleted, is unavailable",
    r"\b(is|are|was|were|been|be|not|ever|never) asked\b(?! (for|to) )|\basked (afresh|again|of)\b"
    r"|\bask(s|ed)? (it|them|again|about|in each|a target|the same)\b": "runs, is evaluated",
    r"\banswer(s|ed)?\b(?!\()": "result; evaluates; responds",
    r"\b(same|identical|one|a) questions?\b": "configuration, request",
    r"\bdoubles? (of|that|that hold)\b|\ba double\b|\bon doubles\b|\bwith doubles\b": "mock",
    r"\btells? (of|what|down|it|whether|nobody)\b|\b(be|was|is) told\b": "reports, notifies",
    r"\brooms?\b(?! (for|to))|\bthe house\b": "packages; the project's rules",
    r"\bbears? the (label|name)\b|\bhears of\b|\bfalls? silent\b": "has the label; receives",
    r"\bfor want of\b|\bwhoso?ever\b|\bnobody is told\b": "because there is no; users who",
    r"\brows and layers\b|\brow of layers\b": "model × target matrix",
}
"""How it is not said -> how it is said."""

IN_NAMES: Mapping[str, str] = {
    **PLAIN,
    r"\bask(s|ed)?\b(?! for\b)": "evaluates, calls, queries",
    r"\banswers?\b|\bquestions?\b": "result, response; request",
    r"\btold\b(?! apart)|\btells?\b": "reported, shown, notified",
    r"\bconfined?\b|\bunreviewed\b": "sandboxed",
    r"\bgone\b": "deleted, ended, resolved",
    r"\bwhole (capture|answer|plan|run)\b|\bwhole$": "single graph; complete",
}
"""The same for names of tests, where every word is a term."""

COMMENTED = (
    "Makefile",
    "Jenkinsfile",
    "Dockerfile",
    "compose.yaml",
    ".env.example",
    "compilewatch.toml",
    "inputs/*.toml",
    "alloy/*.alloy",
    "alloy/sinks/*.alloy",
    "stack/**/*.y*ml",
    "stack/**/*.sh",
    "stack/**/*.groovy",
    "scripts/*.sh",
    "scripts/stages/*.sh",
)
"""Files whose comments and messages people read."""


def _documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), ROOT / "alloy/README.md", *ROOT.glob("docs/**/*.md")])


def _without_code(markdown: str) -> str:
    """A page without its code: what a tool prints is checked where the tool is."""
    text = re.sub(r"^( *)```.*?^\1```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "`code`", text)


def _found(text: str, patterns: Mapping[str, str] = PLAIN) -> list[str]:
    joined = re.sub(r"\n[ #/*]*", " ", text)
    return [
        f"...{joined[max(0, m.start() - 30) : m.end() + 30]}... say: {plain}"
        for pattern, plain in patterns.items()
        for m in re.finditer(pattern, joined, flags=re.IGNORECASE)
    ]


def _source_texts(source: str) -> Iterator[str]:
    """The comments and the strings with several words of a Python module, without `code`."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield re.sub(r"`[^`\n]+`", "`code`", node.value)


def _texts(node: Any) -> Iterator[str]:
    """Titles, descriptions and words for missing values of a dashboard."""
    if isinstance(node, list):
        for each in node:
            yield from _texts(each)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("title", "description", "noValue", "label") and isinstance(value, str):
                yield value
            else:
                yield from _texts(value)


@pytest.mark.parametrize("path", _documents(), ids=lambda p: p.name)
def test_documents_use_the_terms_of_the_glossary(path: Path) -> None:
    assert _found(_without_code(path.read_text(encoding="utf-8"))) == []


def test_comments_and_messages_use_the_terms_of_the_glossary() -> None:
    paths = sorted(p for pattern in COMMENTED for p in ROOT.glob(pattern))
    assert len(paths) > 40
    found = {str(p.relative_to(ROOT)): _found(_prose(p.read_text("utf-8"))) for p in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


def _prose(text: str) -> str:
    """The comments and quoted texts of a configuration file or script."""
    comments = re.findall(r"(?:#|//) .*|# HELP.*", text)
    quoted = re.findall(r"\"[^\"\n]* [^\"\n]*\"|'[^'\n]* [^'\n]*'", text)
    return "\n".join([*comments, *quoted])


def test_modules_use_the_terms_of_the_glossary() -> None:
    package = ROOT / "src/compilewatch"
    paths = sorted(package.rglob("*.py"))
    assert len(paths) > 200
    found = {
        str(path.relative_to(package)): _found("\n".join(_source_texts(path.read_text("utf-8"))))
        for path in paths
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_names_of_tests_use_the_terms_of_the_glossary() -> None:
    names = [
        node.name.replace("_", " ")
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(names) > 1000
    assert {name: _found(name, IN_NAMES) for name in names if _found(name, IN_NAMES)} == {}


def test_dashboards_use_the_terms_of_the_glossary() -> None:
    for path in sorted(ROOT.glob("dashboards/json/**/*.json")):
        texts = list(_texts(json.loads(path.read_text(encoding="utf-8"))))
        assert len(texts) > 10
        assert {text: _found(text) for text in texts if _found(text)} == {}, path.name


@pytest.mark.parametrize(
    "wrong",
    [
        "24 of 25 verdicts compile whole",
        "each target is asked in every environment",
        "A run that asks the same questions",
        "Tested on doubles of the real programs",
        "the gateway refuses the push",
        "the other targets are at home in `default`",
        "the network's patience",
        "mend the disk first",
        "What a setting cures",
    ],
)
def test_the_patterns_find_what_they_are_for(wrong: str) -> None:
    assert _found(wrong)


@pytest.mark.parametrize(
    "right",
    [
        "The IDLE_MINUTES is a whole number",
        "`prune` asks for confirmation",
        "the waits double each time",
        "there is room for more",
        "the home folder of the user, the agent with the label home",
    ],
)
def test_the_patterns_allow_plain_english(right: str) -> None:
    assert _found(right) == []
