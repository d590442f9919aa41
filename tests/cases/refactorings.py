"""Changes of a source file that change nothing of what it computes: no graph break is a new one."""

import ast
import io
import re
import tokenize
from collections.abc import Callable

Refactoring = Callable[[str], str]


def sub(pattern: str, by: str) -> Refactoring:
    return lambda source: re.sub(pattern, by, source, flags=re.MULTILINE)


def text(*pairs: tuple[str, str]) -> Refactoring:
    def replaced(source: str) -> str:
        for old, new in pairs:
            source = source.replace(old, new)
        return source

    return replaced


LOCALS = re.compile("total|hidden|scale|block|index|scores|kept|state|chosen|rows")


def renamed_locals(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and LOCALS.fullmatch(node.id):
            node.id = f"the_{node.id}"
    return ast.unparse(tree) + "\n"


def another_order_of_classes(source: str) -> str:
    """Subclasses that others do not need come last, in the reverse order."""
    start, end = source.index("class Mlp"), source.index("MODELS:")
    blocks = re.split(r"(?=^class )", source[start:end], flags=re.MULTILINE)[1:]
    bases = r"class (Mlp|Normed|Stacked|Attention|Conv|Experts)\b"
    first = [block for block in blocks if re.match(bases, block)]
    last = [block for block in blocks if block not in first]
    return source[:start] + "".join([*first, *reversed(last)]) + source[end:]


def functions_below_their_users(source: str) -> str:
    start, end = source.index("def gate("), source.index("class Mlp")
    return (source[:start] + source[end:]).replace("MODELS:", f"{source[start:end]}MODELS:")


def without_comments(source: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(COMMENTED(source)).readline)
    return tokenize.untokenize([token for token in tokens if token.type != tokenize.COMMENT])


def renamed_method(source: str) -> str:
    """What `forward` did is in a method of another name."""
    method = "    def forward(self, x: Tensor) -> Tensor:\n        return self.run(x)\n\n"
    start = source.index("class Items")
    rest = source[start:].replace("    def forward(", f"{method}    def run(", 1)
    return source[:start] + rest.replace("super().forward(x)", "Mlp.forward(self, x)", 1)


def function_as_method(source: str) -> str:
    start, end = source.index("def gate("), source.index("class Mlp")
    body = re.sub(r"^", "    ", source[start:end].strip(), flags=re.MULTILINE)
    moved = f"{source[:start]}class Gates:\n    @staticmethod\n{body}\n\n\n{source[end:]}"
    return re.sub(r"(?<= )gate\((hidden|x)\)", r"Gates.gate(\1)", moved)


BRANCH = "    if total > 0:\n        x = x * 2\n"
HELPER = f"def scaled(total: Tensor, x: Tensor) -> Tensor:\n{BRANCH}    return x\n\n\n"
UNUSED = "def unused(x: Tensor) -> Tensor:\n    return x\n\n\n"
EXTRA = "    def extra(self) -> int:\n        return 1\n\n"
TENSOR, NN = "from torch import Tensor\n", "from torch import nn\n"

COMMENTED = sub(r"^( +)return ", r"\1# What is returned.\n\1return ")

LAYOUT: dict[str, tuple[Refactoring, ...]] = {
    "more lines": (
        sub(r"^( *)(def .*:)$", r'\1\2\n\1    """What it does."""'),
        COMMENTED,
        text(("log = ", 'VERSION = "1"\nlog = ')),
        text(("def gate(", f"{UNUSED}def gate(")),
        text(("    def forward(", f"{EXTRA}    def forward(")),
        text(("from torch import Tensor, nn\n", TENSOR + NN)),
        sub(r"^( *)(def|class|return|for|if) ", r"\n\1\2 "),
        lambda source: f'"""A new docstring."""\n\n# One.\n# Two.\n\n{source}',
        lambda source: re.sub(r"(?m)^( {4})+", lambda m: "\t" * (len(m[0]) // 4), source),
        text(("\n", "\r\n")),
    ),
    "fewer lines": (
        sub(r"\) -> [\w.]+:$", "):"),
        sub(r"\b(x|inputs): Tensor", r"\1"),
        text(("import copy\nimport logging\nimport math\n", "import copy, logging, math\n")),
        without_comments,
        sub(r"^\s*\n", ""),
    ),
    "returned expressions on lines of their own": (
        sub(r"^( +)return (.+)$", r"\1return (\n\1    \2\n\1)"),
    ),
    "renamed locals and arguments": (renamed_locals, sub(r"\bx\b", "inputs")),
    "another order": (another_order_of_classes, functions_below_their_users),
    "renamed functions": (sub(r"\bgate\b", "choose"), renamed_method),
    "function as method": (function_as_method,),
}
"""Changes of the complete file; those of one name are made at once."""

OF_GATE: dict[str, tuple[Refactoring, ...]] = {
    "extracted helper": (
        text((f"{BRANCH}    return x\n", "    return scaled(total, x)\n")),
        text(("def gate(", f"{HELPER}def gate(")),
    ),
    "extracted condition": (
        text(("    if total > 0:", "    positive = total > 0\n    if positive:")),
    ),
    "inlined variable": (text(("    total = x.sum()\n    if total > 0:", "    if x.sum() > 0:")),),
    "named constant": (
        text(("    if total > 0:", "    if total > LIMIT:"), ("log =", "LIMIT = 0\nlog =")),
    ),
    "conditional expression": (text((BRANCH, "    x = x * 2 if total > 0 else x\n")),),
}
"""Changes of the function `gate`, which the model `Gated` calls."""
