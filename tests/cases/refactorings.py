"""Changes of a source file that change nothing of what it computes: no graph break is a new one."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable

Refactoring = Callable[[str], str]


def lines_above(source: str) -> str:
    return '"""A new docstring."""\n\n# One.\n# Two.\n\n' + source


def blank_lines_everywhere(source: str) -> str:
    return re.sub(r"^( *)(def|class|return|for|if) ", r"\n\1\2 ", source, flags=re.MULTILINE)


def without_blank_lines(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if line.strip()) + "\n"


def reformatted(source: str) -> str:
    return ast.unparse(ast.parse(source)) + "\n"


def comments_in_functions(source: str) -> str:
    return re.sub(r"^( +)return ", r"\1# What is returned.\n\1return ", source, flags=re.MULTILINE)


def tabs(source: str) -> str:
    return re.sub(
        r"^( {4})+", lambda found: "\t" * (len(found[0]) // 4), source, flags=re.MULTILINE
    )


def windows_newlines(source: str) -> str:
    return source.replace("\n", "\r\n")


def parentheses(source: str) -> str:
    """Every returned expression on lines of its own."""
    return re.sub(r"^( +)return (.+)$", r"\1return (\n\1    \2\n\1)", source, flags=re.MULTILINE)


def split_imports(source: str) -> str:
    return source.replace(
        "from torch import Tensor, nn\n", "from torch import Tensor\nfrom torch import nn\n"
    )


def joined_imports(source: str) -> str:
    return source.replace(
        "import copy\nimport logging\nimport math\n", "import copy, logging, math\n"
    )


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node


def renamed_locals(source: str) -> str:
    names = (
        "total",
        "hidden",
        "scale",
        "block",
        "index",
        "scores",
        "kept",
        "state",
        "chosen",
        "rows",
    )
    tree = ast.parse(source)
    return ast.unparse(_Rename({name: f"the_{name}" for name in names}).visit(tree)) + "\n"


def renamed_arguments(source: str) -> str:
    return re.sub(r"\bx\b", "inputs", source)


def without_annotations(source: str) -> str:
    source = re.sub(r"\) -> [\w.]+:$", "):", source, flags=re.MULTILINE)
    return re.sub(r"\b(x|inputs): Tensor", r"\1", source)


def docstrings(source: str) -> str:
    return re.sub(
        r"^( *)(def .*:)$", r'\1\2\n\1    """What it does."""', source, flags=re.MULTILINE
    )


def a_constant_of_the_module(source: str) -> str:
    return source.replace("log = ", 'VERSION = "1"\nlog = ')


def a_function_more(source: str) -> str:
    return source.replace(
        "def gate(", "def unused(x: Tensor) -> Tensor:\n    return x\n\n\ndef gate("
    )


def _blocks(source: str) -> tuple[str, list[str], str]:
    start, end = source.index("class Mlp"), source.index("MODELS:")
    return (
        source[:start],
        re.split(r"(?=^class )", source[start:end], flags=re.MULTILINE)[1:],
        source[end:],
    )


def another_order_of_classes(source: str) -> str:
    """Subclasses that others do not need come last, in the reverse order."""
    head, blocks, tail = _blocks(source)
    bases = {"Mlp", "Normed", "Stacked", "Attention", "Conv", "Experts"}
    first = [block for block in blocks if re.match(r"class (\w+)", block)[1] in bases]  # type: ignore[index]
    return head + "".join([*first, *reversed([b for b in blocks if b not in first])]) + tail


def functions_below_their_users(source: str) -> str:
    start, end = source.index("def gate("), source.index("class Mlp")
    function = source[start:end]
    without = source[:start] + source[end:]
    return without.replace("MODELS:", f"{function}MODELS:")


def another_method_before(source: str) -> str:
    return source.replace(
        "    def forward(", "    def extra(self) -> int:\n        return 1\n\n    def forward("
    )


def without_comments(source: str) -> str:
    commented = comments_in_functions(source)
    kept = [
        token
        for token in tokenize.generate_tokens(io.StringIO(commented).readline)
        if token.type != tokenize.COMMENT
    ]
    return tokenize.untokenize(kept)


def renamed_function(source: str) -> str:
    return re.sub(r"\bgate\b", "choose", source)


def extracted_helper(source: str) -> str:
    body = "    if total > 0:\n        x = x * 2\n    return x\n"
    helper = f"def scaled(total: Tensor, x: Tensor) -> Tensor:\n{body}\n\ndef gate("
    return source.replace(body, "    return scaled(total, x)\n").replace("def gate(", helper)


def extracted_condition(source: str) -> str:
    return source.replace("    if total > 0:", "    positive = total > 0\n    if positive:")


def inlined_variable(source: str) -> str:
    return source.replace("    total = x.sum()\n    if total > 0:", "    if x.sum() > 0:")


def named_constant(source: str) -> str:
    return source.replace("    if total > 0:", "    if total > LIMIT:") + "\nLIMIT = 0\n"


def conditional_expression(source: str) -> str:
    return source.replace(
        "    if total > 0:\n        x = x * 2\n", "    x = x * 2 if total > 0 else x\n"
    )


def renamed_method(source: str) -> str:
    """What `forward` did is in a method of another name."""
    method = "    def forward(self, x: Tensor) -> Tensor:\n        return self.run(x)\n\n"
    start = source.index("class Items")
    head, rest = source[:start], source[start:]
    return head + rest.replace("    def forward(", f"{method}    def run(", 1).replace(
        "super().forward(x)", "Mlp.forward(self, x)", 1
    )


def function_as_method(source: str) -> str:
    start, end = source.index("def gate("), source.index("class Mlp")
    body = re.sub(r"^", "    ", source[start:end].strip(), flags=re.MULTILINE)
    holder = f"class Gates:\n    @staticmethod\n{body}\n\n\n"
    return (
        (source[:start] + holder + source[end:])
        .replace(" gate(hidden)", " Gates.gate(hidden)")
        .replace("= gate(x)", "= Gates.gate(x)")
    )


REFACTORINGS: tuple[Refactoring, ...] = (
    lines_above,
    blank_lines_everywhere,
    without_blank_lines,
    reformatted,
    comments_in_functions,
    tabs,
    windows_newlines,
    parentheses,
    split_imports,
    joined_imports,
    renamed_locals,
    renamed_arguments,
    without_annotations,
    docstrings,
    a_constant_of_the_module,
    a_function_more,
    another_order_of_classes,
    functions_below_their_users,
    another_method_before,
    without_comments,
    renamed_function,
    extracted_helper,
    extracted_condition,
    inlined_variable,
    named_constant,
    conditional_expression,
    renamed_method,
    function_as_method,
)
