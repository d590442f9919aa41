"""Rules for attention over segments whose number depends on data."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.rewriting.matching import attribute_call, keyword, name_of, only_used_in
from compilewatch.extras.fixes.rewriting.rule import Edits, Rule, all_of
from compilewatch.extras.fixes.rewriting.sites import Site


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
    for start in range(max(at - 2, 0), at + 1):
        found = _attended(site, block[start : start + 3])
        if found:
            return found
    return ()


def _attended(site: Site, three: list[ast.stmt]) -> Edits:
    match three:
        case [
            ast.Assign(targets=[ast.Name(id=splits)], value=ast.ListComp() as split),
            ast.Assign(targets=[ast.Name(id=outputs)], value=ast.ListComp() as attended),
            ast.Assign(targets=[ast.Name(id=output)], value=ast.Call() as joined),
        ]:
            pass
        case _:
            return ()
    states, lengths = _split_states(split)
    call = _call_by_segment(attended, splits)
    whole = ast.unparse(joined) == f"torch.cat({outputs}, dim=1)"
    if call is None or not whole or len(states) != 3:
        return ()
    if not only_used_in(site.function, {splits, outputs}, three):
        return ()
    segments, mask = site.new_name("segments"), site.new_name("segment_mask")
    query, indent = states[0], " " * three[0].col_offset
    new = [
        f"torch._assert_async(({lengths} >= 0).all() & ({lengths}.sum() == {query}.shape[2]))",
        f"{segments} = torch.arange({query}.shape[2], device={lengths}.device)",
        f"{segments} = torch.bucketize({segments}, {lengths}.cumsum(0), right=True)",
        f"{mask} = torch.zeros({query}.shape[2], {query}.shape[2], dtype={query}.dtype, "
        f"device={query}.device)",
        f"{mask} = {mask}.masked_fill({segments}[:, None] != {segments}, torch.finfo({query}.dtype).min)",
        f"{output} = {call.func_text}(",
        *(f"    {text}," for text in (*call.first, *states, f"attention_mask={mask}[None, None]")),
        *(f"    {text}," for text in call.rest),
        ")[0]",
    ]
    text = "".join(f"{indent}{line}\n" for line in new)
    return all_of(site.edit(site.span(three[0], three[2]), text))


class _Call:
    def __init__(self, call: ast.Call) -> None:
        self.func_text = ast.unparse(call.func)
        self.first = [ast.unparse(each) for each in call.args[:-3]]
        self.rest = [
            ast.unparse(each) if each.arg else f"**{ast.unparse(each.value)}"
            for each in call.keywords
            if each.arg != "attention_mask"
        ]


def _split_states(split: ast.ListComp) -> tuple[list[str], str]:
    """The three tensors that `[torch.split(t, lengths.tolist(), dim=2) for t in ...]` splits."""
    match split:
        case ast.ListComp(
            elt=ast.Call(args=[ast.Name(id=each), sizes]) as call,
            generators=[
                ast.comprehension(
                    target=ast.Name(id=target), iter=ast.Tuple(elts=states) | ast.List(elts=states), ifs=[]
                )
            ],
        ) if each == target and ast.unparse(call.func) == "torch.split":
            lengths = attribute_call(sizes, "tolist")
            dim = keyword(call, "dim")
            names = [name_of(state) for state in states]
            if name_of(lengths) and dim is not None and ast.unparse(dim) == "2" and all(names):
                return names, name_of(lengths)
    return [], ""


def _call_by_segment(attended: ast.ListComp, splits: str) -> _Call | None:
    """The call of `[function(self, q, k, v, attention_mask=None, ...)[0] for q, k, v in zip(*splits)]`."""
    match attended:
        case ast.ListComp(
            elt=ast.Subscript(value=ast.Call(args=[*_, query, key, value]) as call, slice=ast.Constant(value=0)),
            generators=[ast.comprehension(target=ast.Tuple(elts=targets), iter=chunks, ifs=[])],
        ) if ast.unparse(chunks) == f"zip(*{splits})":
            names = [name_of(each) for each in targets]
            mask = keyword(call, "attention_mask")
            others = [*call.args[:-3], *(each.value for each in call.keywords)]
            used = {n.id for other in others for n in ast.walk(other) if isinstance(n, ast.Name)}
            if (
                [name_of(each) for each in (query, key, value)] == names
                and mask is not None
                and ast.unparse(mask) == "None"
                and not used & set(names)
            ):
                return _Call(call)
    return None


RULES = (
    Rule(
        name="segments attended in one call",
        summary="Segments are attended in one call with a mask that keeps them apart, instead of "
        "one call each. The mask has the square of the sequence's length as size.",
        when=r"tolist|data.dependent|GB9493|GuardOnDataDependent|split",
        apply=masked,
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
segment_mask = torch.zeros(query.shape[2], query.shape[2], dtype=query.dtype, device=query.device)
segment_mask = segment_mask.masked_fill(segments[:, None] != segments, torch.finfo(query.dtype).min)
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
