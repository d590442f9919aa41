"""What is tried against graph breaks: changes that their reasons make plausible."""

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compilewatch import records
from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.records import Edit, FixChange, FixKind
from compilewatch.extras.fixes.rewriting import Site, change, module_of, parsed, site_at
from compilewatch.extras.fixes.rules import CHECKS, RULES


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a proposer may know: the request, its example inputs, and the source of a file.

    `source_of` returns the text of a file that a break names, None if it cannot be read.
    """

    request: records.Request
    source_of: Callable[[str], str | None]
    inputs: tuple[records.TensorSummary, ...] = ()

    def library_source(self, file: str) -> str | None:
        """The text of a file of a library; None for torch itself, and for code without a file."""
        return None if re.match("torch/|<", file) else self.source_of(file)


Changes = Iterator[FixChange]

SETTINGS = (
    (
        "capture_scalar_outputs=True",
        r"capture_scalar_outputs|_local_scalar_dense|Tensor\.item\(\)|Tensor\.tolist",
        "Values that are read from tensors (.item(), .tolist()) become part of the graph.",
        "Arithmetic on numbers that are read from tensors stays within 64 bits, and divides by "
        "none that is zero: where Python has large integers and errors, a graph wraps and gives "
        "infinity.",
    ),
    (
        "capture_dynamic_output_shape_ops=True",
        r"capture_dynamic_output_shape_ops|output shape depends on input Tensor data",
        "Operators whose output has a size that depends on data are captured.",
        "A size that depends on data is neither 0 nor 1 where the model treats these otherwise.",
    ),
    (
        "allow_rnn=True",
        r"config\.allow_rnn",
        "RNN, GRU and LSTM are captured.",
        "Nobody changes the weights of a recurrent layer by another object than its parameters.",
    ),
    (
        "graph_break_on_nn_param_ctor=False",
        r"graph_break_on_nn_param_ctor|nn\.Parameter\(\)? ?constructor",
        "The constructor of nn.Parameter is captured.",
        "Nobody trains or keeps a parameter that the call creates.",
    ),
    (
        "enable_trace_load_build_class=True",
        r"enable_trace_load_build_class|LOAD_BUILD_CLASS",
        "Classes that are defined in the call are captured.",
        "Nobody keeps or compares a class that the call defines.",
    ),
    (
        "trace_autograd_ops=True",
        r"trace_autograd_ops|torch\.autograd\.grad",
        "torch.autograd.grad is captured.",
        "Nobody differentiates again, outside of the call, what torch.autograd.grad returns.",
    ),
    (
        "allow_unspec_int_on_nn_module=True",
        r"allow_unspec_int_on_nn_module|[Rr]ecompile limit exceeded",
        "Integers that are attributes of modules may vary without a new compilation.",
        "Integers that are attributes of modules stay within 64 bits in all arithmetic.",
    ),
    (
        "recompile_limit=64",
        r"[Rr]ecompile limit exceeded",
        "More versions of a function may be compiled before Dynamo gives up.",
        "A function needs at most 64 versions: beyond them it runs in eager mode.",
    ),
)
"""Settings of `torch._dynamo.config`: the reasons for which one is tried, summary and condition."""


def settings(breaks: Sequence[records.GraphBreak], _: Place) -> Changes:
    reasons = "\n".join(graph_break.reason for graph_break in breaks)
    for patched, when, summary, condition in SETTINGS:
        if re.search(when, reasons):
            yield _setting(patched, patched, summary, condition)
    for method in sorted({*re.findall(r"ignore_logging_functions\.add\(logger\.(\w+)\)", reasons)}):
        yield ignored_message(f"logging.Logger.{method}", name=method)
    if re.search(r"builtin `_?warnings\.warn`", reasons):
        yield ignored_message("warnings.warn")
    if re.search(r"reorderable_logging_functions(?!.*logger)|builtin `?print", reasons):
        yield _setting(
            "reorderable_logging_functions: print",
            "reorderable_logging_functions="
            "{*torch._dynamo.config.reorderable_logging_functions, print}",
            "What is printed appears after the graph has run.",
            "Nobody needs what is printed in its place among other output, or if the graph "
            "raises an error.",
        )


def _setting(
    name: str, patched: str, summary: str, condition: str, imports: tuple[str, ...] = ()
) -> FixChange:
    return FixChange(
        name=name,
        kind=FixKind.SETTING,
        summary=summary,
        imports=imports,
        lines=(f"stack.enter_context(torch._dynamo.config.patch({patched}))",),
        holds_if=(condition,),
    )


def ignored_message(function: str, name: str = "") -> FixChange:
    """Skip a function that only says something: a message is lost, and nothing that is computed."""
    functions = f"{{*torch._dynamo.config.ignore_logging_functions, {function}}}"
    return _setting(
        f"ignore_logging_functions: {name or function}",
        f"ignore_logging_functions={functions}",
        f"Compiled code skips the message of {function.removeprefix('logging.')}.",
        "Nobody needs the message of compiled code: no handler counts it, and no filter turns "
        "it into an error.",
        (f"import {function.partition('.')[0]}",),
    )


def after_rejection(reason: str) -> FixChange | None:
    """Return what may make changes verifiable that the verification rejected for this reason."""
    if not re.search(r"Unbacked|Pending|GuardOnDataDependent|data-dependent", reason):
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


def usage(_: Sequence[records.GraphBreak], __: Place) -> Changes:
    """Propose one call in eager mode: caches are filled then, and hooks installed."""
    imports, definitions = replacements.pasted(replacements.copied)
    yield FixChange(
        name="call once before compiling",
        kind=FixKind.USAGE,
        summary="The model is called once in eager mode before it is compiled: what it does in "
        "its first call only (filling caches, installing hooks) is done then.",
        imports=(*imports, "import weakref"),
        definitions=(
            "_called = weakref.WeakSet()  # models that were called once before they are compiled",
            *definitions,
        ),
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


def attributes(breaks: Sequence[records.GraphBreak], place: Place) -> Changes:
    """Propose what the line of a break reads of `self` and only `__init__` assigns."""
    for graph_break in breaks:
        if re.search(r"data.dependent|Tensor\.item|tolist", graph_break.reason, re.IGNORECASE):
            source = place.library_source(graph_break.file)
            yield from map(as_python_value, _constants(source or "", graph_break.line))


def _constants(source: str, line: int) -> list[str]:
    """The attributes of `self` that a line reads, if `__init__` assigns them and nothing else does.

    What is assigned elsewhere may be a count or a state, which a Python value would lose.
    """
    tree = parsed(source)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    at_line = (node for node in nodes if node.lineno == line and isinstance(node.ctx, ast.Load))
    read = [node.attr for node in at_line if ast.unparse(node.value) == "self"]
    first = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for node in ast.walk(function)
    }
    stored = [node for node in nodes if not isinstance(node.ctx, ast.Load)]
    begun = {node.attr for node in stored if node in first}
    changed = {node.attr for node in stored if node not in first}
    return [name for name in dict.fromkeys(read) if name in begun - changed]


def as_python_value(name: str) -> FixChange:
    """Return the change by which attributes of this name are Python values during the call."""
    pasted = replacements.pasted(replacements.hold_as_python_value, replacements.put_back)
    return FixChange(
        name=f"{name} as a Python value",
        kind=FixKind.USAGE,
        summary=f"Attributes {name} of the model and its modules that hold one number, in a tensor "
        "or in a scalar of NumPy, are Python values during the call, which Dynamo guards on.",
        imports=pasted[0],
        definitions=pasted[1],
        lines=(f"hold_as_python_value(stack, model, {name!r})",),
        attributes=(name,),
        holds_if=(
            f"Nothing else holds the tensor in {name} and changes it in place during a call.",
            f"{name} seldom has new values: each costs a compilation.",
        ),
    )


_VALUES = re.compile(
    r"_local_scalar_dense|capture_scalar_outputs|capture_dynamic_output|data-dependent|"
    r"Data-dependent|Unbacked|unbacked"
)


def arguments(breaks: Sequence[records.GraphBreak], place: Place) -> Changes:
    # Before the sizes become numbers, because it takes them as tensors.
    if not isinstance(place.request.model.build, records.FactoryBuild | records.LibraryBuild):
        yield from _of_transformers(breaks, place)
    if any(_VALUES.search(graph_break.reason) for graph_break in breaks):
        yield from filter(None, map(given_as_numbers, place.inputs))


def _of_transformers(breaks: Sequence[records.GraphBreak], place: Place) -> Changes:
    frames = [(f.file, f.function) for graph_break in breaks for f in graph_break.user_stack]
    named = " ".join(f"{file} {function}" for file, function in frames)
    if re.search(r"get_rope_index|compute_3d_position_ids|get_vision_position_ids", named):
        yield FixChange(
            name="position_ids computed before the call",
            kind=FixKind.ARGUMENT,
            summary="Position ids that depend on the values of the inputs are computed before the "
            "call, by the model's own method, and given to it; what it keeps for later calls is "
            "kept.",
            imports=("import inspect",),
            lines=(
                "inner = model if hasattr(model, "
                '"get_rope_index") else getattr(model, "model", None)',
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
    if re.search(r"cache|past_key_values", named, re.IGNORECASE):
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
    of_config = isinstance(place.request.model.build, records.ConfigBuild)
    if re.search(r"attention|attn|sdpa", named, re.IGNORECASE) and not of_config:
        yield FixChange(
            name="attention implementation eager",
            kind=FixKind.ARGUMENT,
            summary="Attention is computed by the implementation 'eager'.",
            lines=(
                "stack.callback(model.set_attn_implementation, model.config._attn_implementation)",
                "model.set_attn_implementation('eager')",
            ),
            holds_if=(
                "The mask, the cache and the sizes of a call suit the implementation eager, and "
                "its memory suffices.",
            ),
        )


def given_as_numbers(argument: records.TensorSummary) -> FixChange | None:
    """Give a tensor of sizes or positions as numbers; None for data, and for more than 64."""
    name, dtype, shape = argument.name, argument.dtype or "", argument.shape
    if not name.isidentifier() or not dtype.startswith(("int", "uint")) or shape is None:
        return None
    if math.prod(shape) > 64 or re.search(r"ids$|mask|labels|token_type", name):
        return None
    imports, definitions = replacements.pasted(replacements.tensor_again)
    return FixChange(
        name=f"{name} given as numbers",
        kind=FixKind.ARGUMENT,
        summary=f"The values of {name} are given as numbers, of which a tensor is made in the "
        "graph: the compiler knows them and guards on them. New values cost a compilation. (Fake "
        "tensors keep the values of constants with one element only; the limit is raised.)",
        imports=(
            *imports,
            "import torch._subclasses.fake_tensor",
            "from unittest import mock",
        ),
        definitions=(
            "FORWARDS = weakref.WeakKeyDictionary()  # by the forward that each one calls",
            *definitions,
        ),
        lines=(
            f'if torch.is_tensor(given := kwargs.get("{name}")):',
            f'    kwargs["{name}"] = given.tolist()',
            f'    forward = tensor_again(model, "{name}", given.dtype, given.device)',
            '    stack.enter_context(mock.patch.object(model, "forward", forward))',
            "fake_tensor = torch._subclasses.fake_tensor",
            'limit = mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", 4096)',
            "stack.enter_context(limit)",
        ),
        holds_if=(
            f"{name} seldom has new values: each costs a compilation, and after the limit of "
            "recompilations the model runs in eager mode.",
            f"{name} is given by its name, and nobody needs its gradient or what the model writes "
            "into it.",
        ),
    )


_OTHERWISE = re.compile(
    r"data.dependent|depends on input|Tensor\.item|tolist|_local_scalar_dense|logging|print",
    re.IGNORECASE,
)
"""Reasons that remain where Dynamo does not trace, and those that a setting is for."""


def replaced_functions(breaks: Sequence[records.GraphBreak], place: Place) -> Changes:
    called = re.compile(r"torch\._check_tensor_all(_with)?\(|torch_compilable_check")
    texts = (line for b in breaks for line in (*b.source, *(f.function for f in b.user_stack)))
    if any(map(called.search, texts)):
        imports, definitions = replacements.pasted(replacements.asserted_in_graph)
        by = "mock.patch.object(torch, '_check_tensor_all', asserted_in_graph)"
        yield FixChange(
            name="torch._check_tensor_all replaced",
            kind=FixKind.FUNCTION,
            summary="torch._check_tensor_all becomes an assertion in the graph, which is checked "
            "when the graph runs. It raises RuntimeError.",
            imports=(*imports, "from unittest import mock"),
            definitions=definitions,
            lines=(f"stack.enter_context({by})",),
            holds_if=(
                "Nobody catches the error by its text; on an accelerator it is raised after the "
                "call.",
            ),
        )
    for graph_break in breaks:
        if not _OTHERWISE.search(graph_break.reason):
            yield from _traced(graph_break, place)


def _traced(graph_break: records.GraphBreak, place: Place) -> Changes:
    """Propose the innermost function on the stack that a module defines.

    Methods get an object, and functions that are defined in others exist once for each call of
    those: neither can be traced without Dynamo.
    """
    for frame in reversed(graph_break.user_stack):
        body = parsed(place.library_source(frame.file) or "").body
        if any(isinstance(s, ast.FunctionDef) and s.name == frame.function for s in body):
            yield traced(module_of(frame.file), frame.function)
            return


def traced(module: str, name: str) -> FixChange:
    """Return the change by which Dynamo does not read a function of a module."""
    pasted = replacements.pasted(replacements.nonstrict, replacements.trace_without_dynamo)
    return FixChange(
        name=f"{module}.{name} traced without Dynamo",
        kind=FixKind.FUNCTION,
        summary=f"{name} is run with tensors that record operators (nonstrict_trace), which may do "
        "what Dynamo cannot read. What else it does, such as a lock, a message or a count, it does "
        "when the model is compiled, and not at each call.",
        imports=pasted[0],
        definitions=pasted[1],
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


def rewritten_lines(breaks: Sequence[records.GraphBreak], place: Place) -> Changes:
    """Propose each rule at all of its places together, then at each of them."""
    sites = [(b, site) for b in breaks if (site := _site(b, place)) is not None]
    caught = {b.fingerprint for b in breaks if _is_caught(b, place)}
    for rule in RULES:
        applied: dict[tuple[Edit, ...], None] = {}
        for graph_break, site in sites:
            if rule.apply in CHECKS and graph_break.fingerprint in caught:
                continue
            if re.search(rule.when, f"{graph_break.code} {graph_break.reason}"):
                applied |= {edits: None for edits in [rule.apply(site)] if edits}
        if len(applied) > 1:
            together = dict.fromkeys(edit for edits in applied for edit in edits)
            yield change(rule, tuple(together))
        for edits in applied:
            yield change(rule, edits)


def _places(graph_break: records.GraphBreak) -> Iterator[tuple[str, int]]:
    """The place of a break, and those on its stack, the innermost first."""
    yield graph_break.file, graph_break.line
    yield from ((frame.file, frame.line) for frame in reversed(graph_break.user_stack))


def _site(graph_break: records.GraphBreak, place: Place) -> Site | None:
    """The innermost place of a library on the stack of a break."""
    for file, line in _places(graph_break):
        if file and (source := place.library_source(file)) is not None:
            return site_at(source, file, line)
    return None


def _is_caught(graph_break: records.GraphBreak, place: Place) -> bool:
    """Whether the model catches errors at a line of the stack of a break."""
    for file, line in dict.fromkeys(_places(graph_break)):
        for node in ast.walk(parsed(place.library_source(file) or "")):
            if isinstance(node, ast.Try):
                catches = bool(node.handlers)
            elif isinstance(node, ast.With):
                catches = any("suppress" in ast.unparse(item) for item in node.items)
            else:
                continue
            if catches and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line):
                return True
    return False


PROPOSERS: tuple[Callable[[Sequence[records.GraphBreak], Place], Changes], ...] = (
    settings,
    usage,
    attributes,
    arguments,
    replaced_functions,
    rewritten_lines,
)
"""What yields changes that the causes of breaks make plausible, most plausible first."""


def proposals(
    breaks: Sequence[records.GraphBreak], place: Place, *, rewrites: bool = True
) -> tuple[FixChange, ...]:
    """Return what all of `PROPOSERS` propose, the least intrusive first, each change once.

    Of a kind, what does its work once comes last. Nothing that is proposed is believed.
    """
    changes: dict[str, FixChange] = {}
    for propose in PROPOSERS if rewrites else PROPOSERS[:-1]:
        for proposed in propose(breaks, place):
            changes.setdefault(proposed.name, proposed)
    kinds = list(FixKind)
    return tuple(sorted(changes.values(), key=lambda c: (kinds.index(c.kind), c.once)))
