"""Arguments of the call and settings of the model's configuration that it documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from compilewatch.extras.fixes.candidates import Place, Proposer
from compilewatch.extras.fixes.records import Change, Kind
from compilewatch.records import ConfigBuild, FactoryBuild, GraphBreak, LibraryBuild

_ROPE = re.compile(r"get_rope_index|compute_3d_position_ids|get_vision_position_ids")
_CACHE = re.compile(r"cache|past_key_values", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn|sdpa", re.IGNORECASE)


class Arguments(Proposer):
    """Changes for models of Transformers, whose arguments have the same names everywhere."""

    def propose(self, breaks: Sequence[GraphBreak], place: Place, /) -> Iterator[Change]:
        if isinstance(place.request.model.build, FactoryBuild | LibraryBuild):
            return
        frames = [(f.file, f.function) for each in breaks for f in each.user_stack]
        named = " ".join(f"{file} {function}" for file, function in frames)
        if _ROPE.search(named):
            yield _rope_index()
        if _CACHE.search(named):
            yield Change(
                name="use_cache=False",
                kind=Kind.ARGUMENT,
                summary="The call returns no cache, which a single forward pass does not need.",
                lines=('kwargs["use_cache"] = False',),
                drops=("past_key_values",),
            )
        if _ATTENTION.search(named) and not isinstance(place.request.model.build, ConfigBuild):
            yield _attention("eager")


def _rope_index() -> Change:
    return Change(
        name="position_ids computed before the call",
        kind=Kind.ARGUMENT,
        summary="Position ids that depend on the values of the inputs are computed before the "
        "call, by the model's own method, and given to it.",
        imports=("import inspect",),
        lines=(
            'if kwargs.get("position_ids") is None and hasattr(model, "get_rope_index"):',
            "    taken = inspect.signature(model.get_rope_index).parameters",
            "    given = {name: kwargs[name] for name in taken if name in kwargs}",
            '    kwargs["position_ids"] = model.get_rope_index(**given)[0]',
        ),
    )


def _attention(implementation: str) -> Change:
    return Change(
        name=f"attention implementation {implementation}",
        kind=Kind.ARGUMENT,
        summary=f"Attention is computed by the implementation {implementation!r}.",
        lines=(f"model.set_attn_implementation({implementation!r})",),
    )
