"""What is tried against graph breaks: changes that their reasons make plausible."""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.records import Edit, FixChange, FixKind
from compilewatch.extras.fixes.rewriting.changes import change, module_of
from compilewatch.extras.fixes.rewriting.rules import RULES
from compilewatch.extras.fixes.rewriting.sites import Site, site_at
from compilewatch.records import (
    ConfigBuild,
    FactoryBuild,
    GraphBreak,
    LibraryBuild,
    Request,
    TensorSummary,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a proposer may know: the request, its example inputs, and the source of a file.

    `source_of` returns the text of a file that a break names, None if it cannot be read.
    """

    request: Request
    source_of: Callable[[str], str | None]
    inputs: tuple[TensorSummary, ...] = ()


NOT_LIBRARIES = re.compile(r"torch/|<")
"""Files of torch itself, and code without a file: nothing of them is replaced or rewritten."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A setting of `torch._dynamo.config` and the reasons for which it is tried."""

    setting: str
    value: str
    when: str
    summary: str
    holds_if: str


_ROWS = (
    _Row(
        setting="capture_scalar_outputs",
        value="True",
        when=r"capture_scalar_outputs|_local_scalar_dense|Tensor\.item\(\)|Tensor\.tolist",
        summary="Values that are read from tensors (.item(), .tolist()) become part of the graph.",
        holds_if="Arithmetic on numbers that are read from tensors stays within 64 bits, and "
        "divides by none that is zero: where Python has large integers and errors, a graph wraps "
        "and gives infinity.",
    ),
    _Row(
        setting="capture_dynamic_output_shape_ops",
        value="True",
        when=r"capture_dynamic_output_shape_ops|output shape depends on input Tensor data",
        summary="Operators whose output has a size that depends on data are captured.",
        holds_if="A size that depends on data is neither 0 nor 1 where the model treats these "
        "otherwise.",
    ),
    _Row(
        setting="allow_rnn",
        value="True",
        when=r"config\.allow_rnn",
        summary="RNN, GRU and LSTM are captured.",
        holds_if="Nobody changes the weights of a recurrent layer by another object than its "
        "parameters.",
    ),
    _Row(
        setting="graph_break_on_nn_param_ctor",
        value="False",
        when=r"graph_break_on_nn_param_ctor|nn\.Parameter\(\)? ?constructor",
        summary="The constructor of nn.Parameter is captured.",
        holds_if="Nobody trains or keeps a parameter that the call creates.",
    ),
    _Row(
        setting="enable_trace_load_build_class",
        value="True",
        when=r"enable_trace_load_build_class|LOAD_BUILD_CLASS",
        summary="Classes that are defined in the call are captured.",
        holds_if="Nobody keeps or compares a class that the call defines.",
    ),
    _Row(
        setting="trace_autograd_ops",
        value="True",
        when=r"trace_autograd_ops|torch\.autograd\.grad",
        summary="torch.autograd.grad is captured.",
        holds_if="Nobody differentiates again, outside of the call, what torch.autograd.grad "
        "returns.",
    ),
    _Row(
        setting="allow_unspec_int_on_nn_module",
        value="True",
        when=r"allow_unspec_int_on_nn_module|[Rr]ecompile limit exceeded",
        summary="Integers that are attributes of modules may vary without a new compilation.",
        holds_if="Integers that are attributes of modules stay within 64 bits in all arithmetic.",
    ),
    _Row(
        setting="recompile_limit",
        value="64",
        when=r"[Rr]ecompile limit exceeded",
        summary="More versions of a function may be compiled before Dynamo gives up.",
        holds_if="A function needs at most 64 versions: beyond them it runs in eager mode.",
    ),
)

_LOGGING = re.compile(r"ignore_logging_functions\.add\(logger\.(\w+)\)")
_WARNING = re.compile(r"builtin `_?warnings\.warn`")
_PRINT = re.compile(r"reorderable_logging_functions(?!.*logger)|builtin `?print")


def settings(breaks: Sequence[GraphBreak], _: Place) -> Iterator[FixChange]:
    reasons = "\n".join(graph_break.reason for graph_break in breaks)
    for row in _ROWS:
        if re.search(row.when, reasons):
            yield _setting(row.setting, row.value, row.summary, row.holds_if)
    for method in sorted(set(_LOGGING.findall(reasons))):
        yield ignored_message(f"logging.Logger.{method}", name=method)
    if _WARNING.search(reasons):
        yield ignored_message("warnings.warn")
    if any(_PRINT.search(line) for line in reasons.splitlines()):
        yield _setting(
            "reorderable_logging_functions",
            "{*torch._dynamo.config.reorderable_logging_functions, print}",
            "What is printed appears after the graph has run.",
            "Nobody needs what is printed in its place among other output, or if the graph "
            "raises an error.",
            name="reorderable_logging_functions: print",
        )


_ONE_SHAPE = re.compile(r"Unbacked|Pending|GuardOnDataDependent|data-dependent")


def after_rejection(reason: str) -> FixChange | None:
    """Return what may make changes verifiable that the verification rejected for this reason."""
    if not _ONE_SHAPE.search(reason):
        return None
    return FixChange(
        name="dynamic=False",
        kind=FixKind.SETTING,
        summary="Each shape is compiled by itself, so that a new shape costs a compilation.",
        lines=('options["dynamic"] = False',),
        holds_if=(
            "There are few shapes: each costs a compilation, and after the limit of recompilations "
            "the model runs in eager mode.",
        ),
    )


def _setting(setting: str, value: str, summary: str, holds_if: str, name: str = "") -> FixChange:
    return FixChange(
        name=name or f"{setting}={value}",
        kind=FixKind.SETTING,
        summary=summary,
        lines=(f"stack.enter_context(torch._dynamo.config.patch({setting}={value}))",),
        holds_if=(holds_if,),
    )


def ignored_message(function: str, name: str = "") -> FixChange:
    """Skip a function that only says something: a message is lost, and nothing that is computed."""
    value = f"{{*torch._dynamo.config.ignore_logging_functions, {function}}}"
    patched = f"torch._dynamo.config.patch(ignore_logging_functions={value})"
    return FixChange(
        name=f"ignore_logging_functions: {name or function}",
        kind=FixKind.SETTING,
        summary=f"Compiled code skips the message of {function.removeprefix('logging.')}.",
        imports=(f"import {function.partition('.')[0]}",),
        lines=(f"stack.enter_context({patched})",),
        holds_if=(
            "Nobody needs the message of compiled code: no handler counts it, and no filter turns "
            "it into an error.",
        ),
    )


_CALLED = "_called = weakref.WeakSet()  # models that were called once before they are compiled"


def usage(_: Sequence[GraphBreak], __: Place) -> Iterator[FixChange]:
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


_READS_VALUE = re.compile(r"data.dependent|Tensor\.item|tolist", re.IGNORECASE)
"""Reasons of breaks at a line that needs the value of a tensor."""


def attributes(breaks: Sequence[GraphBreak], place: Place) -> Iterator[FixChange]:
    """Propose what the line of a break reads of `self` and only `__init__` assigns."""
    for graph_break in breaks:
        if not _READS_VALUE.search(graph_break.reason) or NOT_LIBRARIES.match(graph_break.file):
            continue
        source = place.source_of(graph_break.file)
        for name in () if source is None else _constants(source, graph_break.line):
            yield as_python_value(name)


def _constants(source: str, line: int) -> list[str]:
    """The attributes of `self` that a line reads, if `__init__` assigns them and nothing else does.

    What is assigned elsewhere may be a count or a state, which a Python value would lose.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    read = [
        attribute.attr
        for attribute in attributes
        if _is_read_of_self(attribute) and attribute.lineno == line
    ]
    first = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for node in ast.walk(function)
    }
    stored = [attribute for attribute in attributes if not isinstance(attribute.ctx, ast.Load)]
    begun = {node.attr for node in stored if node in first}
    changed = {node.attr for node in stored if node not in first}
    return [name for name in dict.fromkeys(read) if name in begun - changed]


def _is_read_of_self(node: ast.Attribute) -> bool:
    owner = node.value
    return isinstance(node.ctx, ast.Load) and isinstance(owner, ast.Name) and owner.id == "self"


def as_python_value(name: str) -> FixChange:
    """Return the change by which attributes of this name are Python values during the call."""
    return FixChange(
        name=f"{name} as a Python value",
        kind=FixKind.USAGE,
        summary=f"Attributes {name} of the model and its modules that hold one number, in a tensor "
        "or in a scalar of NumPy, are Python values during the call, which Dynamo guards on.",
        imports=(
            "import sys",
            "from contextlib import ExitStack",
            "from typing import Any",
        ),
        definitions=(
            inspect.getsource(replacements.hold_as_python_value),
            inspect.getsource(replacements.put_back),
        ),
        lines=(f"hold_as_python_value(stack, model, {name!r})",),
        attributes=(name,),
        holds_if=(
            f"Nothing else holds the tensor in {name} and changes it in place during a call.",
            f"{name} seldom has new values: each costs a compilation.",
        ),
    )


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


def arguments(breaks: Sequence[GraphBreak], place: Place) -> Iterator[FixChange]:
    # Before the sizes become numbers, because it takes them as tensors.
    if not isinstance(place.request.model.build, FactoryBuild | LibraryBuild):
        yield from _of_transformers(breaks, place)
    if any(_VALUES.search(graph_break.reason) for graph_break in breaks):
        yield from filter(None, map(given_as_numbers, place.inputs))


def _of_transformers(breaks: Sequence[GraphBreak], place: Place) -> Iterator[FixChange]:
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


@dataclass(frozen=True, kw_only=True)
class _Replacement:
    """A function by module and name, what takes its place, and the source lines that call it."""

    module: str
    name: str
    by: Callable[..., Any]
    called: str
    summary: str
    holds_if: tuple[str, ...]


_REPLACEMENTS = (
    _Replacement(
        module="torch",
        name="_check_tensor_all",
        by=replacements.asserted_in_graph,
        called=r"torch\._check_tensor_all(_with)?\(|torch_compilable_check",
        summary="torch._check_tensor_all becomes an assertion in the graph, which is checked when "
        "the graph runs. It raises RuntimeError.",
        holds_if=(
            "Nobody catches the error by its text; on an accelerator it is raised after the call.",
        ),
    ),
)


def replaced_functions(breaks: Sequence[GraphBreak], place: Place) -> Iterator[FixChange]:
    for replacement in _REPLACEMENTS:
        if any(re.search(replacement.called, _text(graph_break)) for graph_break in breaks):
            yield _replaced(replacement)
    for graph_break in breaks:
        if not _OTHERWISE.search(graph_break.reason) and (
            named := _function_of(graph_break, place)
        ):
            yield traced(*named)


_OTHERWISE = re.compile(
    r"data.dependent|depends on input|Tensor\.item|tolist|_local_scalar_dense|logging|print",
    re.IGNORECASE,
)
"""Reasons that remain where Dynamo does not trace, and those that a setting is for."""


def _function_of(graph_break: GraphBreak, place: Place) -> tuple[str, str] | None:
    """The module and the name of the innermost function on the stack that a module defines.

    Methods get an object, and functions that are defined in others exist once for each call of
    those: neither can be traced without Dynamo.
    """
    for frame in reversed(graph_break.user_stack):
        source = None if NOT_LIBRARIES.match(frame.file) else place.source_of(frame.file)
        if source is not None and frame.function in _defined(source):
            return module_of(frame.file), frame.function
    return None


def _defined(source: str) -> set[str]:
    """The functions that the body of a module defines; none of a text that is not Python."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return set()
    return {statement.name for statement in body if isinstance(statement, ast.FunctionDef)}


def traced(module: str, name: str) -> FixChange:
    """Return the change by which Dynamo does not read a function of a module."""
    return FixChange(
        name=f"{module}.{name} traced without Dynamo",
        kind=FixKind.FUNCTION,
        summary=f"{name} is run with tensors that record operators (nonstrict_trace), which may do "
        "what Dynamo cannot read. What else it does, such as a lock, a message or a count, it does "
        "when the model is compiled, and not at each call.",
        imports=(
            "import functools",
            "import importlib",
            "import sys",
            "from collections.abc import Callable",
            "from contextlib import ExitStack",
            "from typing import Any",
            "from unittest import mock",
        ),
        definitions=(
            inspect.getsource(replacements.nonstrict),
            inspect.getsource(replacements.trace_without_dynamo),
        ),
        lines=(f"trace_without_dynamo(stack, {module!r}, {name!r})",),
        once=True,
        functions=(f"{module}:{name}",),
        holds_if=(
            f"What {name} reads besides its arguments stays as it is when the model is compiled, "
            "for there is no guard.",
            f"What {name} does besides computing tensors need not happen at each call.",
            f"{name} decides nothing on the values of tensors.",
        ),
    )


def _text(graph_break: GraphBreak) -> str:
    """The source around a break and the functions that lead to it."""
    return "\n".join([*graph_break.source, *(frame.function for frame in graph_break.user_stack)])


def _replaced(replacement: _Replacement) -> FixChange:
    return FixChange(
        name=f"{replacement.module}.{replacement.name} replaced",
        kind=FixKind.FUNCTION,
        summary=replacement.summary,
        imports=(
            f"import {replacement.module}",
            "from typing import Any",
            "from unittest import mock",
        ),
        definitions=(inspect.getsource(replacement.by),),
        lines=(
            f"stack.enter_context(mock.patch.object({replacement.module}, {replacement.name!r}, "
            f"{replacement.by.__name__}))",
        ),
        holds_if=replacement.holds_if,
    )


def rewritten_lines(breaks: Sequence[GraphBreak], place: Place) -> Iterator[FixChange]:
    """Propose each rule at all of its places together, then at each of them."""
    sites = [
        (graph_break, site)
        for graph_break in breaks
        if (site := _site(graph_break, place)) is not None
    ]
    caught = {graph_break.fingerprint for graph_break in breaks if _is_caught(graph_break, place)}
    for rule in RULES:
        edits_found: dict[tuple[Edit, ...], None] = {}
        for located, site in sites:
            if rule.other_error and located.fingerprint in caught:
                continue
            if re.search(rule.when, f"{located.code} {located.reason}") and (
                edits := rule.apply(site)
            ):
                edits_found[edits] = None
        if len(edits_found) > 1:
            together = {edit: None for edits in edits_found for edit in edits}
            yield change(rule, tuple(together), place.source_of)
        for edits in edits_found:
            yield change(rule, edits, place.source_of)


def _site(graph_break: GraphBreak, place: Place) -> Site | None:
    """The innermost place of a library on the stack of a break."""
    frames = [(frame.file, frame.line) for frame in reversed(graph_break.user_stack)]
    for file, line in [(graph_break.file, graph_break.line), *frames]:
        if file and not NOT_LIBRARIES.match(file):
            source = place.source_of(file)
            if source is not None:
                return site_at(source, file, line, graph_break.reason)
    return None


def _is_caught(graph_break: GraphBreak, place: Place) -> bool:
    """Whether the model catches errors at a line of the stack of a break."""
    for file, line in {
        (graph_break.file, graph_break.line),
        *((f.file, f.line) for f in graph_break.user_stack),
    }:
        source = None if NOT_LIBRARIES.match(file) else place.source_of(file)
        with contextlib.suppress(SyntaxError):
            for node in ast.walk(ast.parse(source or "")):
                if not isinstance(node, ast.Try | ast.With):
                    continue
                catches = isinstance(node, ast.Try) and bool(node.handlers)
                if isinstance(node, ast.With):
                    catches = any("suppress" in ast.unparse(item) for item in node.items)
                if catches and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line):
                    return True
    return False


PROPOSERS: tuple[Callable[[Sequence[GraphBreak], Place], Iterator[FixChange]], ...] = (
    settings,
    usage,
    attributes,
    arguments,
    replaced_functions,
    rewritten_lines,
)
"""What yields changes that the causes of breaks make plausible, most plausible first."""

_ORDER = {kind: number for number, kind in enumerate(FixKind)}


def proposals(
    breaks: Sequence[GraphBreak], place: Place, *, rewrites: bool = True
) -> tuple[FixChange, ...]:
    """Return what all of `PROPOSERS` propose, the least intrusive first, each change once.

    What removes a check of the model comes last. Of a kind, what does its work once comes last.
    Nothing that is proposed is believed.
    """
    changes: dict[str, FixChange] = {}
    for propose in PROPOSERS:
        if propose is not rewritten_lines or rewrites:
            for proposed in propose(breaks, place):
                changes.setdefault(proposed.name, proposed)
    return tuple(
        sorted(
            changes.values(),
            key=lambda proposed_change: (
                proposed_change.removes_check,
                _ORDER[proposed_change.kind],
                proposed_change.once,
            ),
        )
    )
