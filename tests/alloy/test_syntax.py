"""The language: what Alloy refuses is refused, with the line; the rest means what it does there."""

from __future__ import annotations

import pytest

from scripts.check_alloy.layout import check_layout
from scripts.check_alloy.syntax import AlloyError, Attribute, Literal, Operation, parse


def value(text: str) -> object:
    (attribute,) = parse("f", f"a = {text}\n").body
    assert isinstance(attribute, Attribute)
    return attribute.value


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('""', ""),
        (r'"\"\\\t\n\a\x41\101\u00e9\U0001F600"', '"\\\t\n\aAA\u00e9\U0001f600'),
        ('`a\\n\n"b"`', 'a\\n\n"b"'),
        ("12", 12),
        ("-12", -12),
        ("1.5e+3", 1500.0),
        (".5", 0.5),
        ("true", True),
        ("null", None),
        ("(3)", 3),
    ],
)
def test_literals(text: str, meant: object) -> None:
    assert value(text) == Literal(value=meant, line=1)  # type: ignore[arg-type]


def test_operators_bind_as_they_do_in_alloy() -> None:
    sum_ = value("1 + 2 * 3 ^ 2 ^ 2 == 4 || !true && a[0].b(1) < 2")
    assert isinstance(sum_, Operation)
    left, right = sum_.operands
    assert isinstance(left, Operation)
    assert left.operands[1] == Literal(value=4, line=1)
    assert isinstance(right, Operation)


def test_comments_stand_anywhere() -> None:
    text = "// a\na { // b\n\t/* c\n\td */ b = 1 // e\n}\n"
    (block,) = parse("f", text).body
    assert (block.name, block.last_line) == ("a", 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a "b" {\n\tc {\n\t\td = 1\n}\n', "5: expected }, got the end of the file"),
        ("a {\n}\n}\n", "3: expected identifier, got }"),
        ('a {\n\tb = "c\n}\n', "2: string literal not terminated"),
        ("a {\n\tb = `c\n}\n", "2: string literal not terminated"),
        ("/* a\n", "1: block comment not terminated"),
        ('a = "\\q"\n', r"1: unknown escape sequence \q"),
        ('a = "\\x4"\n', "1: unknown escape sequence \\x4"),
        ('a = "\\ud800"\n', r"1: \ud800 is no Unicode code point"),
        ("a = 'b'\n", "1: illegal single-quoted string; use double quotes"),
        ("a = #\n", "1: illegal character '#'"),
        ("a = 30s\n", "1: expected the end of the line, got s"),
        ("a = [\n\t1\n]\n", "2: expected , or ], got the end of the line"),
        ("a = [1 2]\n", "1: expected , or ], got 2"),
        ("a = {b = 1 c = 2}\n", "1: expected , or }, got c"),
        ("a = {1 = 2}\n", "1: expected identifier or string, got 1"),
        ("a = f(1\n", "1: expected , or ), got the end of the line"),
        ("a = \n", "2: expected"),
        ("a.b = 1\n", "1: an attribute's name has no dot: a.b"),
        ('a "b" = 1\n', "1: expected {, got ="),
        ('a "b-c" {\n}\n', '1: a label is an identifier: "b-c"'),
        ("a `b` {\n}\n", "1: a label is an identifier: `b`"),
        ("a b\n", "1: expected = or {, got b"),
        ("a { b = 1 c = 2 }\n", "1: expected the end of the line, got c"),
        ("a.1 {\n}\n", "1: expected"),
    ],
)
def test_what_alloy_cannot_read(text: str, message: str) -> None:
    with pytest.raises(AlloyError) as caught:
        parse("f", text)
    assert str(caught.value).startswith(f"f:{message}")


def layout(text: str) -> list[str]:
    return [str(each).removeprefix("f:") for each in check_layout(parse("f", text), text)]


FORMATTED = """\
a "b" {
	targets = call(
		[{
			one   = 1,
			three = "3",
		}],
		[],
	)
	longest = {}
	short   = [{a = 1, b = -2}]
	last    = {
		key = [
			1,
			2,
		],
		more = x[0].y,
	}

	// One.
	empty { }

	other {
		a = !b && c

		bcd = "d"
	}
	after = 1
}

c { }
"""


def test_what_alloy_fmt_writes_is_left() -> None:
    assert layout(FORMATTED) == []


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("\ttargets", "  targets", "2: indent with 1 tab"),
        ("\t\t\tone", "\t\tone", "4: indent with 3 tabs"),
        ("\t\t}],\n\t\t[]", "\t}],\n\t\t[]", "6: indent with 2 tabs"),
        ("\t// One", "\t\t// One", "19: indent with 1 tab"),
        ("short   =", "short =", "10: align the = of short with those above and below"),
        ("one   =", "one =", "4: align the = of one with those above and below"),
        ("\t\ta = !b", "\t\ta   = !b", "23: align the = of a with those above and below"),
        ('= "3",', '= "3"', None),
        ("\t\t\t2,\n", "\t\t\t2, \n", "14: white space at the end of the line"),
        ("1, b", "1,b", "10: one space between , and b"),
        ("{a = 1, b = -2}", "{ a = 1, b = -2 }", "10: no space between { and a"),
        ("{a = 1, b = -2}", "{a =  1, b = -2}", "10: one space between = and 1"),
        ("{a = 1, b = -2}", "{a = 1, b = -2,}", "10: no comma before }"),
        ("empty { }", "empty {}", "20: one space between { and }"),
        ("empty { }\n\n", "empty { }\n", "21: a blank line before other"),
        ("\n\n\t// One", "\n\n\n\t// One", "18: one blank line is enough"),
        ("other {\n", "other {\n\n", "23: no blank line after {"),
        ('"d"\n', '"d"\n\n', "26: no blank line before }"),
        ("c { }\n", "c { }", "30: a file ends with one end of line"),
        ("c { }\n", "c { }\n\n", "32: a file ends with one end of line"),
    ],
)
def test_what_alloy_fmt_would_change(right: str, wrong: str, message: str | None) -> None:
    assert right in FORMATTED
    text = FORMATTED.replace(right, wrong, 1)
    if message is None:  # Alloy cannot read it at all
        with pytest.raises(AlloyError):
            parse("f", text)
    else:
        assert message in layout(text)
