"""The signature of a forward: its arguments, which are required, and their documentation."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from torch import nn

SHAPE = re.compile(r"shape:?\s*`*\s*(?P<shape>\([^)]*\))")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The named arguments of a forward in order, without `*args` and `**kwargs`."""

    parameters: dict[str, inspect.Parameter]
    doc: str

    @property
    def required(self) -> tuple[str, ...]:
        """Arguments without a default."""
        return tuple(
            name for name, p in self.parameters.items() if p.default is inspect.Parameter.empty
        )

    def annotation(self, name: str) -> str:
        """Return the annotation of an argument as text, "" without one."""
        annotation: Any = self.parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            return ""
        return annotation if isinstance(annotation, str) else str(annotation)

    def documented_shape(self, name: str) -> tuple[str, ...] | None:
        """Return the dimensions in the docstring: `shape (batch_size, 3)` -> those two words.

        Transformers documents arguments in this way ("`name` (`torch.Tensor` of shape `(…)`"); see
        its docs on writing documentation. None without documentation.
        """
        sentence = SHAPE.search(self.documented_type(name))
        if sentence is None:
            return None
        return tuple(
            d.strip(" `") for d in sentence["shape"].strip("()").split(",") if d.strip(" `")
        )

    def documented_type(self, name: str) -> str:
        """Return the docstring's text after the name of an argument, "" without one."""
        line = re.search(rf"^\s*{re.escape(name)} ?\((?P<rest>.*)$", self.doc, re.MULTILINE)
        return line["rest"] if line else ""


def read_signature(module: nn.Module) -> Signature:
    """Return the signature of `module.forward`, through decorators that keep `__wrapped__`."""
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.kind not in skipped
    }
    return Signature(parameters=parameters, doc=inspect.getdoc(module.forward) or "")
