"""Writes the script that verifies a fix: plain PyTorch, without compilewatch."""

from __future__ import annotations

import copy
import inspect
import textwrap
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes.code import NAME, context_manager, imports
from compilewatch.extras.fixes.records import SCRIPT_FILE, FixChange
from compilewatch.extras.fixes.worker import verifying
from compilewatch.records import Mode, Request, Status, TargetOutcome
from compilewatch.worker import forked
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.example_inputs.context import BATCH, SEQUENCE
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.reproduce import at_written_depth, dtype_source, model_source
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.value_source import OBJECTS, given_source, has_objects, inputs_source

SETTINGS = ("stack.enter_context(torch._dynamo.config.patch(", 'options["')
"""How each line of a change begins that only changes what the compiler does."""

SECOND_BATCH = BATCH + 1
SECOND_LENGTH = SEQUENCE - 8
"""The second shape: more samples, shorter texts."""


def script(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Write the script to a file of the artifacts; `values` are those of `source`."""
    changes = msgspec.convert(values["changes"], tuple[FixChange, ...])
    free(subject.module)  # the script's model is built at its own depth, and may be as large
    request = msgspec.structs.replace(subject.request, work=None)
    text = source(request, changes, values["title"], shapes=values["shapes"])
    (subject.artifacts / SCRIPT_FILE).write_text(text)
    return TargetOutcome(status=Status.PASS, artifacts=(SCRIPT_FILE,))


def source(
    request: Request, changes: tuple[FixChange, ...], title: str, *, shapes: bool = False
) -> str:
    """Return the complete script; with `shapes`, one that counts compilations for other sizes.

    Raises InputsError or ConfigError where the model or its inputs cannot be written as source.
    """
    request = at_written_depth(request)
    built = build_model(request, None)
    train = request.target.mode is Mode.TRAIN
    built.module.train(train)  # detectors take other inputs in train mode
    inputs = partial(make_inputs, built.module, request, None)
    first = inputs()
    longer = inputs(batch=SECOND_BATCH, length=SECOND_LENGTH)
    second = second_shape(built.module, first, longer)
    model = [
        "torch.manual_seed(seed)",
        *model_source(request, built.module, built.config),
        *dtype_source(built.module),
        "model.train()" if train else "model.eval()",
        "return model",
    ]
    parts = [
        f'"""{title}: a verification in plain PyTorch {torch.__version__}.\n\n'
        f"{request.model.name} on {target_label(request.target)}. Exit status: 0 a single graph,\n"
        "1 fewer graph breaks, 3 not verified. With --json the figures are printed as JSON, with\n"
        "--cost the seconds of a call. With --one-at-a-time the requirements are examined one\n"
        'after the other, not two at a time.\n"""',
        verification_text(),
        "import functools\nimport importlib\nfrom collections import OrderedDict, defaultdict",
        "\n".join(imports(changes)),
        OBJECTS.strip() if has_objects(first) or has_objects(second) else "",
        context_manager(changes, title),
        "def build(seed):\n" + textwrap.indent("\n".join(model), "    "),
        "def inputs(shape):\n"
        '    if shape == "first shape":\n'
        f"{_inputs(first)}\n"
        "    else:\n"
        f"{_inputs(second)}\n"
        "    return args, kwargs",
        'if __name__ == "__main__":\n'
        f"    given = {of_subject(changes, train=train, shapes=shapes)}\n"
        f"    subject = ScriptSubject(build, inputs, {NAME}, **given)\n"
        "    sys.exit(main(subject))\n",
    ]
    return "\n\n\n".join(filter(None, parts))


def free(module: torch.nn.Module) -> None:
    """Return the memory of a model's tensors, whoever still refers to the model."""
    for tensor in (*module.parameters(), *module.buffers()):
        storage = tensor.untyped_storage()
        if storage.resizable():  # not that of an array of numpy
            storage.resize_(0)


def shapes(inputs: ExampleInputs) -> list[torch.Size]:
    leaves = tree_leaves((inputs.args, inputs.kwargs))
    return [leaf.shape for leaf in leaves if isinstance(leaf, torch.Tensor)]


def second_shape(
    module: torch.nn.Module, first: ExampleInputs, longer: ExampleInputs
) -> ExampleInputs:
    """Return inputs of another shape that eager mode takes; the first ones if it takes none.

    They are those that the rules make for more samples, or else the first ones with one more
    sample, where a person gave them or the rules know no number of samples.
    """
    for inputs in (longer, with_one_more(first)):
        if shapes(inputs) != shapes(first) and is_taken(module, inputs):
            return inputs
    return first


def is_taken(module: torch.nn.Module, inputs: ExampleInputs) -> bool:
    """Whether a model takes these inputs in eager mode. Nothing of the call is left."""

    def call(module: torch.nn.Module) -> bool:
        with torch.no_grad():
            module(*inputs.args, **inputs.kwargs)
        return True

    try:
        if forked.possible():
            return forked.in_fork(partial(call, module), bool)
        return call(copy.deepcopy(module))
    except Exception:  # noqa: BLE001  (model code)
        return False


def with_one_more(inputs: ExampleInputs) -> ExampleInputs:
    """Repeat the first sample in all tensors that have as many samples as the first one."""
    samples = next((shape[:1] for shape in shapes(inputs) if shape), None)

    def longer(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([value, value[:1]]) if value.shape[:1] == samples else value

    args, kwargs = tree_map_only(torch.Tensor, longer, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)


def verification_text() -> str:
    """Return the text of `verifying` without its docstring: plain PyTorch."""
    text = inspect.getsource(verifying)
    return text.partition('"""\n\n')[2].strip()


def _inputs(inputs: ExampleInputs) -> str:
    """The source of inputs; those that a person gave have their own values."""
    tensor = given_source if inputs.strategy in ("file", "factory") else None
    return textwrap.indent(inputs_source(inputs, tensor=tensor), " " * 8)


def of_subject(changes: tuple[FixChange, ...], *, train: bool, shapes: bool = False) -> str:
    """Return the source of the other arguments of a `ScriptSubject`: what the changes concern."""
    branches = []
    for change in changes:
        for edit, name in zip(change.edits, change.functions, strict=False):
            module, _, path = name.partition(":")
            for title, *lines in edit.branches:
                forced = (
                    f"lambda: edited({module!r}, {path!r}, ({edit.old!r}, {new!r}))"
                    for new in lines
                )
                branches.append(f"({title!r}, {', '.join(forced)})")
    functions = dict.fromkeys(name for change in changes for name in change.functions)
    arguments = {
        "train": train,
        "shapes": shapes,
        "drops": tuple(sorted({name for change in changes for name in change.drops})),
        "functions": tuple(functions),
        "frozen": tuple(name for change in changes if change.once for name in change.functions),
        "attributes": tuple(name for change in changes for name in change.attributes),
        "settings": all(line.startswith(SETTINGS) for change in changes for line in change.lines),
    }
    return f"{{**{arguments!r}, 'branches': [{', '.join(branches)}]}}"
