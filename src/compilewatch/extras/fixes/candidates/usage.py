"""How a model is used: what its first call does is done before Dynamo looks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.candidates import Place, Proposer
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.records import GraphBreak

_CALLED = "_called = weakref.WeakSet()  # models that were called once before they are compiled"


class UsageProposer(Proposer):
    def propose(self, _: Sequence[GraphBreak], __: Place, /) -> Iterator[FixChange]:
        """Propose one call in eager mode: caches are filled then, and hooks installed."""
        yield FixChange(
            name="call once before compiling",
            kind=FixKind.USAGE,
            summary="The model is called once in eager mode before it is compiled: what it does in "
            "its first call only (filling caches, installing hooks) is done then.",
            imports=(
                "import copy",
                "import weakref",
                "from torch.utils._pytree import tree_leaves",
                "from typing import Any",
            ),
            definitions=(_CALLED, inspect.getsource(replacements.copied)),
            lines=(
                "if model not in _called:",
                "    _called.add(model)",
                "    first_args, first_kwargs = copied(args, kwargs)",
                "    with torch.no_grad(), torch.random.fork_rng():",
                "        model(*first_args, **first_kwargs)",
            ),
            holds_if=(
                "What the first call of the model does may be done once more: it counts, writes "
                "and sends nothing that must happen once.",
                "What it fills suits all later calls, whatever their shapes, types and devices.",
            ),
        )
