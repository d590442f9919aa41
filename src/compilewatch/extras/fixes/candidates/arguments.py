"""Arguments of the call and settings of the model's configuration that it documents."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.candidates import Place, Proposer
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.records import ConfigBuild, FactoryBuild, GraphBreak, LibraryBuild, TensorSummary

_ROPE = re.compile(r"get_rope_index|compute_3d_position_ids|get_vision_position_ids")
_CACHE = re.compile(r"cache|past_key_values", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn|sdpa", re.IGNORECASE)
_VALUES = re.compile(
    r"_local_scalar_dense|capture_scalar_outputs|capture_dynamic_output|data-dependent|"
    r"Data-dependent|Unbacked|unbacked"
)
_DATA = re.compile(r"ids$|mask|labels|token_type")
_SMALL = 64
"""Of so many elements an argument is a list of sizes; larger ones are data."""


_CONSTANTS = 4096


class ArgumentsProposer(Proposer):
    """Values of small arguments, and what models of Transformers document under one name."""

    def propose(self, breaks: Sequence[GraphBreak], place: Place, /) -> Iterator[FixChange]:
        # Before the sizes become numbers, because it takes them as tensors.
        if not isinstance(place.request.model.build, FactoryBuild | LibraryBuild):
            yield from self._of_transformers(breaks, place)
        if any(_VALUES.search(graph_break.reason) for graph_break in breaks):
            yield from filter(None, map(given_as_numbers, place.inputs))

    def _of_transformers(self, breaks: Sequence[GraphBreak], place: Place) -> Iterator[FixChange]:
        frames = [(f.file, f.function) for graph_break in breaks for f in graph_break.user_stack]
        named = " ".join(f"{file} {function}" for file, function in frames)
        if _ROPE.search(named):
            yield _rope_index()
        if _CACHE.search(named):
            yield FixChange(
                name="use_cache=False",
                kind=FixKind.ARGUMENT,
                summary="The call returns no cache, which a single forward pass does not need.",
                imports=("import inspect",),
                lines=(
                    'if "use_cache" in inspect.signature(model.forward).parameters:',
                    '    kwargs["use_cache"] = False',
                ),
                drops=("past_key_values",),
                holds_if=("Nobody needs the cache of this call, now or for a next token.",),
            )
        if _ATTENTION.search(named) and not isinstance(place.request.model.build, ConfigBuild):
            yield _attention("eager")


def _rope_index() -> FixChange:
    return FixChange(
        name="position_ids computed before the call",
        kind=FixKind.ARGUMENT,
        summary="Position ids that depend on the values of the inputs are computed before the "
        "call, by the model's own method, and given to it; what it keeps for later calls is kept.",
        imports=("import inspect",),
        lines=(
            'inner = model if hasattr(model, "get_rope_index") else getattr(model, "model", None)',
            'if kwargs.get("position_ids") is None and hasattr(inner, "get_rope_index"):',
            "    taken = inspect.signature(inner.get_rope_index).parameters",
            "    given = {name: kwargs[name] for name in taken if name in kwargs}",
            '    kwargs["position_ids"], deltas = inner.get_rope_index(**given)',
            '    if hasattr(inner, "rope_deltas"):',
            "        inner.rope_deltas = deltas",
        ),
        holds_if=(
            "Each call is the first one of its text: with a cache of earlier calls the model "
            "computes other position ids.",
        ),
    )


def _attention(implementation: str) -> FixChange:
    return FixChange(
        name=f"attention implementation {implementation}",
        kind=FixKind.ARGUMENT,
        summary=f"Attention is computed by the implementation {implementation!r}.",
        lines=(
            "stack.callback(model.set_attn_implementation, model.config._attn_implementation)",
            f"model.set_attn_implementation({implementation!r})",
        ),
        holds_if=(
            f"The mask, the cache and the sizes of a call suit the implementation {implementation}"
            ", and its memory suffices.",
        ),
    )


def given_as_numbers(argument: TensorSummary) -> FixChange | None:
    """Give a tensor of sizes or positions as numbers; None for data."""
    name, dtype, shape = argument.name, argument.dtype or "", argument.shape
    if not name.isidentifier() or not dtype.startswith(("int", "uint")) or shape is None:
        return None
    if math.prod(shape) > _SMALL or _DATA.search(name):
        return None
    return FixChange(
        name=f"{name} given as numbers",
        kind=FixKind.ARGUMENT,
        summary=f"The values of {name} are given as numbers, of which a tensor is made in the "
        "graph: the compiler knows them and guards on them. New values cost a compilation. (Fake "
        "tensors keep the values of constants with one element only; the limit is raised.)",
        imports=(
            "import inspect",
            "import torch._subclasses.fake_tensor",
            "import weakref",
            "from collections.abc import Callable",
            "from types import MethodType",
            "from typing import Any",
            "from unittest import mock",
        ),
        definitions=(_FORWARDS, inspect.getsource(replacements.tensor_again)),
        lines=(
            f'if torch.is_tensor(given := kwargs.get("{name}")):',
            f'    kwargs["{name}"] = given.tolist()',
            f'    forward = tensor_again(model, "{name}", given.dtype, given.device)',
            '    stack.enter_context(mock.patch.object(model, "forward", forward))',
            "fake_tensor = torch._subclasses.fake_tensor",
            f'limit = mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", {_CONSTANTS})',
            "stack.enter_context(limit)",
        ),
        holds_if=(
            f"{name} seldom has new values: each costs a compilation, and after the limit of "
            "recompilations the model runs in eager mode.",
            f"{name} is given by its name, and nobody needs its gradient or what the model writes "
            "into it.",
        ),
    )


_FORWARDS = "FORWARDS = weakref.WeakKeyDictionary()  # by the forward that each one calls"
