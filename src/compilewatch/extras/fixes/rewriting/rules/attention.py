"""Rules for attention over segments whose number depends on data."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from compilewatch.extras.fixes.rewriting.sites import (
    Edits,
    RewriteRule,
    Site,
    all_of,
    attribute_call,
    keyword,
    name_of,
    only_used_in,
)


def masked(site: Site) -> Edits:
    """Attend to all segments in one call, with a mask that keeps them apart.

    A query meets the keys of its own segment only: the others have the smallest number of the type
    added, whose exponential is zero beside that of its own key. The calls by segment are those of
    Transformers: `function(module, query, key, value, attention_mask=None, ...)` on (batch, heads,
    length, size), with an output of (batch, length, heads, size); the mask is added to the weights
    by all of its implementations that take one. What `split` raises where the lengths are not those
    of the sequence is checked in the graph. An infinite value or NaN in one segment reaches others.
    """
    block = site.block()
    at = block.index(site.statement)
    for start in range(max(at - 3, 0), at + 1):
        for length in (2, 3, 4):
            attended = _attended(site, block[start : start + length])
            if attended:
                return attended
    return ()


def _attended(site: Site, statements: list[ast.stmt]) -> Edits:
    match statements:
        case [ast.Assign(targets=[ast.Name(id=splits)], value=ast.ListComp() as split), *rest]:
            states, lengths = _split_states(split)
        case _:
            return ()
    call = _by_segment(rest, splits) if len(states) == 3 else None
    if call is None or not only_used_in(site.function, {splits, *call.lists}, statements):
        return ()
    segments, mask = site.new_name("segments"), site.new_name("segment_mask")
    query, indent = states[0], " " * statements[0].col_offset
    new = [
        f"torch._assert_async(({lengths} >= 0).all() & ({lengths}.sum() == {query}.shape[2]))",
        f"{segments} = torch.arange({query}.shape[2], device={lengths}.device)",
        f"{segments} = torch.bucketize({segments}, {lengths}.cumsum(0), right=True)",
        f"{mask} = {segments}[:, None] != {segments}",
        f"{mask} = torch.zeros_like({mask}, dtype={query}.dtype).masked_fill(",
        f"    {mask}, torch.finfo({query}.dtype).min",
        ")",
        f"{call.target} = {call.function}(",
        *(f"    {text}," for text in (*call.first, *states)),
        f"    attention_mask={mask}[None, None],",
        *(f"    {text}," for text in call.rest),
        f"){call.index}",
        *call.after,
    ]
    text = "".join(f"{indent}{line}\n" for line in new)
    return all_of(site.edit(site.span(statements[0], statements[-1]), text))


@dataclass(frozen=True, kw_only=True)
class _SegmentCall:
    """The call for one segment: what it is assigned to, and the lists that go with the loop."""

    function: str
    first: list[str]
    rest: list[str]
    target: str
    index: str = "[0]"
    lists: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()


def _by_segment(statements: list[ast.stmt], splits: str) -> _SegmentCall | None:
    """The call of each segment in one of the three forms that Transformers has."""
    match statements:
        case [
            ast.Assign(targets=[ast.Name(id=outputs)], value=ast.ListComp() as each),
            ast.Assign(targets=[ast.Name(id=output)], value=joined),
        ] if ast.unparse(joined) == f"torch.cat({outputs}, dim=1)":
            return _of_comprehension(each, splits, target=output, lists=frozenset({outputs}))
        case [
            ast.Assign(
                targets=[ast.Name(id=output)],
                value=ast.Call(
                    args=[ast.ListComp() as each], keywords=[ast.keyword(arg="dim")]
                ) as joined,
            )
        ] if ast.unparse(joined) == f"torch.cat({ast.unparse(each)}, dim=1)":
            return _of_comprehension(each, splits, target=output)
        case [ast.Assign() as empty, ast.For(orelse=[]) as loop, ast.Assign() as joined_]:
            return _of_loop(empty, loop, joined_, splits)
    return None


def _of_comprehension(comprehension: ast.ListComp, splits: str, **data: Any) -> _SegmentCall | None:
    match comprehension:
        case ast.ListComp(
            elt=ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=0)),
            generators=[ast.comprehension(target=target, iter=chunks, ifs=[])],
        ) if ast.unparse(chunks) == f"zip(*{splits})":
            return _call(call, target, **data)
    return None


def _of_loop(
    empty: ast.Assign, loop: ast.For, joined: ast.Assign, splits: str
) -> _SegmentCall | None:
    """`outputs, weights = [], []`, the loop that appends to both, and `torch.cat(outputs, dim=1)`.

    The list of weights has one entry then, for all segments; it is None where the implementation
    returns none.
    """
    match loop.body:
        case [
            ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=output), ast.Name(id=weight)]) as pair],
                value=ast.Call() as call,
            ),
            ast.Expr(value=first),
            ast.Expr(value=second),
        ]:
            pass
        case _:
            return None
    outputs = ast.unparse(first).partition(".append(")[0]
    weights = ast.unparse(second).partition(".append(")[0]
    expected = [
        (empty, f"{outputs}, {weights} = ([], [])"),
        (first, f"{outputs}.append({output})"),
        (second, f"{weights}.append({weight})"),
        (joined, f"{output} = torch.cat({outputs}, dim=1)"),
        (loop.iter, f"zip(*{splits})"),
    ]
    if any(ast.unparse(node) != text for node, text in expected):
        return None
    return _call(
        call,
        loop.target,
        target=ast.unparse(pair).strip("()"),
        index="",
        lists=frozenset({outputs}),
        after=(f"{weights} = [{weight}]",),
    )


def _call(call: ast.Call, loop: ast.expr, **data: Any) -> _SegmentCall | None:
    """The call `function(self, q, k, v, attention_mask=None, ...)`, which uses q, k, v once."""
    names = [name_of(element) for element in loop.elts] if isinstance(loop, ast.Tuple) else []
    mask = keyword(call, "attention_mask")
    others = [*call.args[:-3], *(each.value for each in call.keywords)]
    used = {n.id for other in others for n in ast.walk(other) if isinstance(n, ast.Name)}
    if (
        len(names) != 3
        or [name_of(argument) for argument in call.args[-3:]] != names
        or (mask is not None and ast.unparse(mask) != "None")
        or used & set(names)
    ):
        return None
    return _SegmentCall(
        function=ast.unparse(call.func),
        first=[ast.unparse(argument) for argument in call.args[:-3]],
        rest=[
            f"{each.arg}={ast.unparse(each.value)}" if each.arg else f"**{ast.unparse(each.value)}"
            for each in call.keywords
            if each.arg != "attention_mask"
        ],
        **data,
    )


def _split_states(split: ast.ListComp) -> tuple[list[str], str]:
    """The three tensors that `[torch.split(t, lengths.tolist(), dim=2) for t in ...]` splits."""
    match split:
        case ast.ListComp(
            elt=ast.Call(args=[ast.Name(id=each), sizes]) as call,
            generators=[
                ast.comprehension(
                    target=ast.Name(id=target),
                    iter=ast.Tuple(elts=states) | ast.List(elts=states),
                    ifs=[],
                )
            ],
        ) if each == target and ast.unparse(call.func) == "torch.split":
            lengths = attribute_call(sizes, "tolist")
            dim = keyword(call, "dim")
            names = [name_of(state) for state in states]
            if name_of(lengths) and dim is not None and ast.unparse(dim) == "2" and all(names):
                return names, name_of(lengths)
    return [], ""


RULES = (
    RewriteRule(
        name="segments attended in one call",
        summary="Segments are attended in one call with a mask that keeps them apart, instead of "
        "one call each. The mask has the square of the sequence's length as size.",
        when=r"tolist|data.dependent|GB9493|GuardOnDataDependent|split",
        apply=masked,
        holds_if=(
            "No segment has NaN or infinity, which would reach the other segments.",
            "The memory suffices for a mask with the square of the sequence's length.",
        ),
        before="""\
lengths = cu_seqlens[1:] - cu_seqlens[:-1]
splits = [torch.split(tensor, lengths.tolist(), dim=2) for tensor in (query, key, value)]
outputs = [attend(self, q, k, v, attention_mask=None, scaling=2)[0] for q, k, v in zip(*splits)]
output = torch.cat(outputs, dim=1)
return output
""",
        at=2,
        after="""\
lengths = cu_seqlens[1:] - cu_seqlens[:-1]
torch._assert_async((lengths >= 0).all() & (lengths.sum() == query.shape[2]))
segments = torch.arange(query.shape[2], device=lengths.device)
segments = torch.bucketize(segments, lengths.cumsum(0), right=True)
segment_mask = segments[:, None] != segments
segment_mask = torch.zeros_like(segment_mask, dtype=query.dtype).masked_fill(
    segment_mask, torch.finfo(query.dtype).min
)
output = attend(
    self,
    query,
    key,
    value,
    attention_mask=segment_mask[None, None],
    scaling=2,
)[0]
return output
""",
    ),
)
