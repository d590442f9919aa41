"""Changes that are tempting and wrong for the models of `tempting.py`, each with the reason.

Many have a right one as well, one for each way in which a fix computes the same: a script that
rejects everything would reject these, too. As a program it prints what the verification says of the
fixes that arguments name as `Model.wrong` or `Model.right`, a JSON object a line. With `--inductor`
they are compiled with Inductor; otherwise AOTAutograd takes its place, with which Inductor begins.
"""

import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tempting
import tempting_proposed
import torch
from tempting import LARGE_BATCH, WIDTH
from torch import Tensor, nn

from compilewatch.extras.fixes import candidates, rewriting
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.extras.fixes.rules import RULES
from compilewatch.records import TensorSummary

Inputs = Callable[[int], tuple[Tensor, ...] | dict[str, Tensor]]


def rows(size: int) -> tuple[Tensor, ...]:
    return (torch.rand(size, WIDTH) + 0.1,)


def masked(size: int) -> tuple[Tensor, ...]:
    return *rows(size), torch.ones(size, WIDTH, dtype=torch.int64)


def integers(size: int) -> tuple[Tensor, ...]:
    return (torch.randint(1, 9, (size, WIDTH)),)


def with_count(size: int) -> tuple[Tensor, ...]:
    return *rows(size), torch.tensor(3)


def with_levels(size: int) -> dict[str, Tensor]:
    sizes = [[2, 2], [2, 1]] if size == LARGE_BATCH else [[2, 3], [1, 1]]
    length = sum(height * width for height, width in sizes)
    return {"x": torch.rand(2, length, WIDTH), "spatial_shapes": torch.tensor(sizes)}


def with_ids(size: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 16, (size, WIDTH))}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, a fix that is wrong for it and why, and one that is right.

    `requirement` is the beginning of the name of the requirement that rejects the wrong one, and
    `condition` a part of a condition under which the right one holds.
    """

    model: type[nn.Module]
    wrong: FixChange | None = None
    why: str = ""
    requirement: str = ""
    right: FixChange | None = None
    condition: str = ""
    train: bool = False
    inputs: Inputs = rows

    @property
    def name(self) -> str:
        return self.model.__name__

    def arguments(self, shape: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of the first or the second shape; the caller has set the seed."""
        inputs = self.inputs(LARGE_BATCH if shape == "first shape" else LARGE_BATCH + 2)
        return ((), inputs) if isinstance(inputs, dict) else (inputs, {})

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.model().train(self.train)


def lines(name: str, *statements: str, kind: FixKind = FixKind.USAGE, **more: Any) -> FixChange:
    return FixChange(name=name, kind=kind, summary=f"{name}.", lines=statements, **more)


def setting(text: str) -> FixChange:
    line = f"stack.enter_context(torch._dynamo.config.patch({text}))"
    return lines(text, line, kind=FixKind.SETTING)


HOME = "sys.modules[type(model).__module__]"


def replaced(
    by: Callable[..., Any], where: str = "type(model)", what: str = "forward"
) -> FixChange:
    """Return the change that puts a function in the place of another, `forward` by default."""
    return lines(
        f"{what} replaced by {by.__name__}",
        f"stack.enter_context(mock.patch.object({where}, {what!r}, {by.__name__}))",
        kind=FixKind.REWRITE,
        imports=(
            *("import math", "import sys", "from typing import Any", "from unittest import mock"),
            "from torch import Tensor",
        ),
        definitions=(textwrap.dedent(inspect.getsource(by)),),
    )


def wrapped(wrapper: str, what: str) -> FixChange:
    """Return the change that wraps a function of the file of the model, once."""
    return lines(
        f"{what} in {wrapper}",
        f"home = {HOME}",
        f"by = _wrapped.setdefault(home, {wrapper}(home.{what}))",
        f"stack.enter_context(mock.patch.object(home, {what!r}, by))",
        kind=FixKind.FUNCTION,
        imports=("import sys", "from unittest import mock"),
        definitions=("_wrapped = {}",),
    )


def both(*changes: FixChange) -> FixChange:
    """Return several changes as one, of the first one's kind."""
    joined: dict[str, Any] = {
        field: sum((getattr(fix, field) for fix in changes), ())
        for field in ("imports", "definitions", "lines", "edits", "functions", "holds_if")
    }
    name = " and ".join(fix.name for fix in changes)
    return FixChange(name=name, kind=changes[0].kind, summary=f"{name}.", **joined)


def rewritten(model: type[nn.Module], rule: str, text: str) -> FixChange:
    """Return the change that a rule makes at the line of a model with this text."""
    own, first = inspect.getsourcelines(model)
    line = next(first + number for number, line in enumerate(own) if text in line)
    source = Path(inspect.getsourcefile(model) or "").read_text()
    site = rewriting.site_at(source, "tempting_proposed.py", line)
    row = next(row for row in RULES if row.change.name == rule)
    assert site is not None
    return rewriting.change(row, row.apply(site), lambda _: source)


SCALARS = setting("capture_scalar_outputs=True")
SHAPES = setting("capture_dynamic_output_shape_ops=True")
ONCE = (
    "if not model.prepared:",
    "    with torch.no_grad():",
    "        model(*[value.clone() for value in args], **kwargs)",
)
LARGE = candidates.as_python_value("large")

# model | the requirement that rejects its wrong fix | why
TABLE = """
LargeBatch             | eager results, seed 0 | the second shape takes the branch
ChangesInput           | eager results, seed 0 | the caller's tensor is no longer changed in place
ChecksForNan           | results for NaN | NaN is no longer an error
DrawsTwice             | eager results, seed 0 | random numbers are drawn in another order
DrawsNumber            | results of the graph, seed 0 | one random number is kept for all calls
CountsInBuffer         | eager results, seed 0 | the call before counts as a step
AveragesInBuffer       | results of the graph, seed 0 | compiled code keeps the old mean
SelectsRows            | results for zeros | data may select no row
ReadsStep              | compilations do not grow | each value of the attribute is compiled anew
HoldsNumbers           | eager results, seed 0 | the tensor is changed in place, a number is not
CallsHelper            | it has fewer graph breaks | the compiler fails in the function
CallsRandomHelper      | results of Inductor | Inductor keeps the random number of its compilation
CallsLockedHelper      | eager results, seed 0 | more than the lock is left out
CallsRememberingHelper | results of the graph, seed 0 | sizes are kept once, when it is compiled
Normalises             | eager results, seed 0 | no gradient flows through the largest value
ReturnsView            | eager results, seed 0 | what the caller writes into the output stays there
ReturnsFigures         | eager results, seed 0 | an output is dropped
CountsPositive         | eager results, seed 0 | the output is of another dtype
ReturnsList            | eager results, seed 0 | the list is a tuple now
CountsInGlobal         | eager results, seed 0 | a global is no longer updated
KeepsScale             | eager results, seed 0 | an attribute that the caller reads is no longer set
DependsOnWeights       | eager results, seed 1 | other weights take the other branch
ForNegative            | results for negative numbers | negative numbers take the branch
ForZero                | results for zeros | zeros are divided by zero
ForInfinity            | results for infinity | what is infinite is no longer limited
ForEmptyMask           | results for integers that are all zero | a mask that hides all
ForPaddedMask          | results for integers that are all zero | a mask that hides some
BreaksOften            | the graphs contain the model | most of the model is no longer compiled
Reads                  | fullgraph=True accepts it | nothing is compiled
ReadsTwice             | nothing stays changed | the setting stays for all models of the program
"""

# Where the fixes are not just the methods `wrong` and `right` of the model in place of `forward`.
OTHERS: dict[str, dict[str, Any]] = {
    "DrawsNumber": {
        "wrong": wrapped("torch.compiler.assume_constant_result", "drawn"),
        "right": SCALARS,
    },
    "CountsInBuffer": {
        "wrong": lines("called once before compiling", *ONCE),
        "right": lines("called once, its buffers put back", *ONCE, "    model.steps.zero_()"),
    },
    "SelectsRows": {"wrong": both(SHAPES, replaced(tempting.SelectsRows.wrong))},
    "ReadsStep": {
        "wrong": both(
            lines("the step is read before the call", "model.current = int(model.step)"),
            replaced(tempting.ReadsStep.wrong),
        )
    },
    "HoldsNumbers": {"wrong": both(LARGE, candidates.as_python_value("step")), "right": LARGE},
    "CallsHelper": {"wrong": wrapped("torch.compiler.allow_in_graph", "halved_if_large")},
    "CallsRandomHelper": {"wrong": wrapped("torch.compiler.allow_in_graph", "jittered")},
    "CallsLockedHelper": {
        "wrong": replaced(tempting.without_factor, HOME, "locked"),
        "right": candidates.traced("tempting", "locked"),
    },
    "CallsRememberingHelper": {"wrong": candidates.traced("tempting", "remembered")},
    "Normalises": {"train": True},
    "ReturnsFigures": {"right": SCALARS},
    "CountsInGlobal": {"wrong": replaced(tempting.uncounted, HOME, "count_call")},
    "ForEmptyMask": {"inputs": masked},
    "ForPaddedMask": {"inputs": masked},
    "BreaksOften": {
        "wrong": lines(
            "the method part in torch.compiler.disable",
            "model.part = torch.compiler.disable(type(model).part.__get__(model))",
            kind=FixKind.FUNCTION,
        )
    },
    "Reads": {
        "wrong": lines("nothing", 'options["disable"] = True', kind=FixKind.SETTING),
        "right": SCALARS,
    },
    "ReadsTwice": {
        "wrong": lines(
            "for good", "torch._dynamo.config.capture_scalar_outputs = True", kind=FixKind.SETTING
        ),
        "right": SCALARS,
    },
}


def tempting_cases(table: str) -> Iterator[Case]:
    for line in table.strip().splitlines():
        name, requirement, why = map(str.strip, line.split("|"))
        model = getattr(tempting, name)
        fixes = {n: replaced(getattr(model, n)) for n in ("wrong", "right") if hasattr(model, n)}
        fields = fixes | OTHERS.get(name, {})
        yield Case(model=model, requirement=requirement, why=why, **fields)


CHOSEN = "chosen instead of branched"
PLACE = candidates.Place(request=None, source_of=open)  # type: ignore[arg-type]
NUMBERS = candidates.given_as_numbers(
    TensorSummary(name="spatial_shapes", dtype="int64", shape=(2, 2))
)
EACH_SHAPE = candidates.after_rejection("data-dependent")
assert NUMBERS is not None
assert EACH_SHAPE is not None
EXPERTS = both(SHAPES, rewritten(tempting_proposed.Experts, "all rows visited", "nonzero()"))
SCALE = candidates.as_python_value("scale")
WARNING = candidates.ignored_message("logging.Logger.warning", name="warning")


def wrong(name: str, requirement: str, why: str, fix: FixChange, **more: Any) -> Case:
    model = getattr(tempting_proposed, name)
    return Case(model=model, requirement=requirement, why=why, wrong=fix, **more)


def right(name: str, fix: FixChange, condition: str = "", **more: Any) -> Case:
    return Case(model=getattr(tempting_proposed, name), right=fix, condition=condition, **more)


def traced(function: str) -> FixChange:
    return candidates.traced("tempting_proposed", function)


# model | the requirement that rejects what a rule makes of the line with a text | rule | text | why
RULED = """
OtherType        | both branches | CHOSEN | if x.max() | the other branch has another type
ChangedLater     | both branches | CHOSEN | if x.max() | the caller's tensor is no longer changed
ReturnsItself    | both branches | CHOSEN | if x.max() | a copy is returned instead of the argument
LimitsOfIntegers | Dynamo captures it | CHOSEN | if torch.isinf | integers have no finfo
WritesParameter  | Dynamo captures it | MASK | if mask.any() | a parameter cannot be written into
CatchesItsCheck  | results for large numbers | CHECK | if x.max() | the model catches its error
"""
NAMES = {"CHOSEN": CHOSEN, "MASK": "assigned where a mask is true", "CHECK": "check in the graph"}
OPTIONS: dict[str, dict[str, Any]] = {
    "OtherType": {"inputs": integers},
    "LimitsOfIntegers": {"inputs": integers},
    "WritesParameter": {"train": True},
}


def ruled_cases(table: str) -> Iterator[Case]:
    for line in table.strip().splitlines():
        name, requirement, rule, text, why = map(str.strip, line.split("|"))
        fix = rewritten(getattr(tempting_proposed, name), NAMES[rule], text)
        yield wrong(name, requirement, why, fix, **OPTIONS.get(name, {}))


AT_COMPILATION = "it is done when the model is compiled, and not at each call"
GRAPH, EAGER = "results of the graph, seed 0", "eager results, seed 0"
AGAIN = "the call before is counted in another file"

PROPOSED = (
    *ruled_cases(RULED),
    right("Experts", EXPERTS, "a gradient of zeros instead"),
    wrong("TrainedExperts", EAGER, "experts without a row get zeros", EXPERTS, train=True),
    right("ReadsGlobal", traced("scaled"), "tempting_proposed.FACTOR"),
    right("ReadsObject", traced("scaled_by_settings"), "tempting_proposed.SETTINGS"),
    right("ReadsOtherModule", traced("scaled_by_other"), "tempting_counts.SCALE"),
    wrong("CountsElsewhere", GRAPH, AT_COMPILATION, traced("counting")),
    wrong("CountsInObject", GRAPH, AT_COMPILATION, traced("counting_in_object")),
    wrong("RemembersInDefault", GRAPH, AT_COMPILATION, traced("remembering")),
    right("SetsLater", SCALE),
    right("SetsInDict", SCALE),
    wrong("FillsLater", "Dynamo captures it", "the seventh call writes into it", SCALE),
    right("LogsForOthers", WARNING, "no handler counts it"),
    wrong("PreparesItself", EAGER, AGAIN, next(candidates.usage((), PLACE))),
    right("Powers", SCALARS, "No integer read at tempting_proposed.py", inputs=with_count),
    right("DividesInPython", SCALARS, "100: eager mode raises Zero", inputs=with_count),
    right("DividesByNumber", SCALARS, "as for 1 / 0"),
    right("CatchesNumber", SCALARS, "No integer read at tempting_proposed.py", inputs=with_count),
    right("Draws", SCALARS, inputs=lambda size: (torch.rand(size, WIDTH),)),
    right("Levels", both(EACH_SHAPE, SCALARS, NUMBERS), inputs=with_levels),
    right("Embeds", SCALARS, inputs=with_ids),
    right("Increments", rewritten(tempting_proposed.Increments, CHOSEN, "if torch.isinf")),
)
"""Models for which what `fix` proposes is wrong, or right under a condition."""

CASES = (*tempting_cases(TABLE), *PROPOSED)
BY_NAME = {case.name: case for case in CASES}


def program(fixes: list[str], *, inductor: bool) -> None:
    """Verify fixes in order, in a process that can fork; print what is found of each."""
    from compilewatch.extras.fixes import code
    from compilewatch.extras.fixes.worker import script, verifying

    def subject_of(case: Case, change: FixChange) -> verifying.ScriptSubject:
        """Return the case with a fix, from the source that is printed and written."""
        names: dict[str, Any] = {}
        manager = code.context_manager([change], change.name)
        exec("\n".join([*code.imports([change]), "\n", manager]), names)
        options = eval(script.of_subject((change,), train=case.train), names)
        return verifying.ScriptSubject(case.build, case.arguments, names[code.NAME], **options)

    first = CASES[0]
    assert first.wrong is not None
    verifying.warm_up(subject_of(first, first.wrong))
    channel = os.dup(1)
    os.dup2(2, 1)  # what the modules print
    if not inductor:
        quick = partial(verifying.equal_with_inductor, backend="aot_eager")
        setattr(verifying, "equal_with_inductor", quick)  # noqa: B010
    for fix in fixes:
        name, _, which = fix.partition(".")
        change = getattr(BY_NAME[name], which)
        steps: list[tuple[str, verifying.Step]] = []
        with verifying.Forks(1) as forks:
            subject = subject_of(BY_NAME[name], change)
            figures = verifying.verify(subject, lambda *step, to=steps: to.append(step), forks)
        holds_if = [*change.holds_if, *figures["holds_if"]]
        failed = {step: detail for step, (passed, detail) in steps if not passed}
        found = {"fix": fix, "failed": failed, "last": steps[-1][0], "holds_if": holds_if}
        found |= {"single_graph": figures["single_graph"]}
        os.write(channel, f"{json.dumps(found)}\n".encode())


if __name__ == "__main__":
    program([a for a in sys.argv[1:] if "." in a], inductor="--inductor" in sys.argv)
