"""Changes that are tempting and wrong for the models of `tempting.py`, each with the reason.

Many have a right one as well, one for each way in which a fix computes the same: a script that
rejects everything would reject these, too. As a program it prints what the verification says of the
fixes that arguments name, a JSON object a line.
"""

import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import tempting
import torch
from tempting import LARGE_BATCH

from compilewatch.extras.fixes import candidates, rewriting
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.extras.fixes.rules import RULES
from compilewatch.records import TensorSummary


def lines(name: str, *statements: str, kind: FixKind = FixKind.USAGE, **more: Any) -> FixChange:
    return FixChange(name=name, kind=kind, summary=f"{name}.", lines=statements, **more)


def setting(text: str) -> FixChange:
    line = f"stack.enter_context(torch._dynamo.config.patch({text}))"
    return lines(text, line, kind=FixKind.SETTING)


def replaced(by: Callable[..., Any]) -> FixChange:
    """Return the change that puts a function in the place of `forward`."""
    return lines(
        f"forward replaced by {by.__name__}",
        f"stack.enter_context(mock.patch.object(type(model), 'forward', {by.__name__}))",
        kind=FixKind.REWRITE,
        imports=(
            *("import math", "from typing import Any", "from unittest import mock"),
            "from torch import Tensor",
        ),
        definitions=(textwrap.dedent(inspect.getsource(by)),),
    )


def in_graph(what: str) -> FixChange:
    """Return the change by which Dynamo takes a function of the model's file for an operator."""
    return lines(
        f"{what} in torch.compiler.allow_in_graph",
        "home = sys.modules[type(model).__module__]",
        f"by = _wrapped.setdefault(home, torch.compiler.allow_in_graph(home.{what}))",
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


def rewritten(model: str, rule: str, text: str) -> FixChange:
    """Return the change that a rule makes at the line of a model with this text."""
    own, first = inspect.getsourcelines(getattr(tempting, model))
    line = next(first + number for number, line in enumerate(own) if text in line)
    source = Path(tempting.__file__).read_text()
    site = rewriting.site_at(source, "tempting.py", line)
    row = next(row for row in RULES if row.change.name == rule)
    assert site is not None
    return rewriting.change(row, row.apply(site))


def traced(function: str) -> FixChange:
    return candidates.traced("tempting", function)


SCALARS = setting("capture_scalar_outputs=True")
SHAPES = setting("capture_dynamic_output_shape_ops=True")
ONCE = (
    "if not model.prepared:",
    "    with torch.no_grad():",
    "        model(*[value.clone() for value in args], **kwargs)",
)
LARGE, SCALE = candidates.as_python_value("large"), candidates.as_python_value("scale")
CHOSEN = "chosen instead of branched"
PLACE = candidates.Place(request=None, source_of=open)  # type: ignore[arg-type]
NUMBERS = candidates.given_as_numbers(
    TensorSummary(name="spatial_shapes", dtype="int64", shape=(2, 2))
)
EACH_SHAPE = candidates.after_rejection("data-dependent")
assert NUMBERS is not None
assert EACH_SHAPE is not None
EXPERTS = both(SHAPES, rewritten("Experts", "all rows visited", "nonzero()"))

# Those that do not put the method `wrong` or `right` of the model in the place of `forward`.
CHANGES = {
    "CountsInBuffer.wrong": lines("called once before compiling", *ONCE),
    "CountsInBuffer.right": lines(
        "called once, then counted anew", *ONCE, "    model.buffer.zero_()"
    ),
    "SelectsRows.wrong": both(SHAPES, replaced(tempting.SelectsRows.wrong)),
    "ReadsStep.wrong": both(
        lines("the step is read before the call", "model.current = int(model.buffer)"),
        replaced(tempting.ReadsStep.wrong),
    ),
    "HoldsNumbers.wrong": both(LARGE, candidates.as_python_value("step")),
    "HoldsNumbers.right": LARGE,
    "CallsHelper.wrong": in_graph("halved_if_large"),
    "CallsRandomHelper.wrong": in_graph("jittered"),
    "CallsLockedHelper.right": traced("locked"),
    "CallsRememberingHelper.wrong": traced("remembered"),
    "ReturnsFigures.right": SCALARS,
    "BreaksOften.wrong": lines(
        "the method part in torch.compiler.disable",
        "model.part = torch.compiler.disable(type(model).part.__get__(model))",
        kind=FixKind.FUNCTION,
    ),
    "Reads.wrong": lines("nothing", 'options["disable"] = True', kind=FixKind.SETTING),
    "Draws.wrong": lines("for good", "torch._dynamo.config.capture_scalar_outputs = True"),
    "Draws.right": SCALARS,
    "OtherType.wrong": rewritten("OtherType", CHOSEN, "if x.max()"),
    "ChangedLater.wrong": rewritten("ChangedLater", CHOSEN, "if x.max()"),
    "ReturnsItself.wrong": rewritten("ReturnsItself", CHOSEN, "if x.max()"),
    "WritesParameter.wrong": rewritten(
        "WritesParameter", "assigned where a mask is true", "if mask.any()"
    ),
    "CatchesItsCheck.wrong": rewritten("CatchesItsCheck", "check in the graph", "if x.max()"),
    "Experts.right": EXPERTS,
    "TrainedExperts.wrong": EXPERTS,
    "ReadsGlobals.right": traced("locked_and_scaled"),
    "CountsInObject.wrong": traced("counting_in_object"),
    "RemembersInDefault.wrong": traced("remembering"),
    "SetsLater.right": SCALE,
    "FillsLater.wrong": SCALE,
    "PreparesItself.wrong": next(candidates.usage((), PLACE)),
    "Powers.right": SCALARS,
    "DividesInPython.right": SCALARS,
    "DividesByNumber.right": SCALARS,
    "Levels.right": both(EACH_SHAPE, SCALARS, NUMBERS),
    "Embeds.right": SCALARS,
    "Increments.right": rewritten("Increments", CHOSEN, "if torch.isinf"),
}

# fix | the requirement that rejects a wrong one, a condition of a right one | why it is wrong
TABLE = """
LargeBatch.wrong             | eager results, seed 0 | the second shape takes the branch
ChangesInput.wrong           | eager results, seed 0 | the caller's tensor is no longer changed
ChangesInput.right           | |
ChecksForNan.wrong           | results for NaN | NaN is no longer an error
ChecksForNan.right           | |
DrawsTwice.wrong             | eager results, seed 0 | random numbers are drawn in another order
DrawsTwice.right             | |
CountsInBuffer.wrong         | eager results, seed 0 | the call before counts as a step
CountsInBuffer.right         | |
AveragesInBuffer.wrong       | results of the graph, seed 0 | compiled code keeps the old mean
AveragesInBuffer.right       | |
SelectsRows.wrong            | results for zeros | data may select no row
ReadsStep.wrong              | compilations do not grow | each value of the attribute is compiled
HoldsNumbers.wrong           | eager results, seed 0 | a number is not changed in place
HoldsNumbers.right           | |
CallsHelper.wrong            | it has fewer graph breaks | the compiler fails in the function
CallsRandomHelper.wrong      | results of Inductor | Inductor keeps the number of its compilation
CallsLockedHelper.right      | |
CallsRememberingHelper.wrong | results of the graph, seed 0 | sizes are kept once
Normalises.wrong             | eager results, seed 0 | no gradient flows through the largest value
Normalises.right             | |
ReturnsView.wrong            | eager results, seed 0 | what is written into the output stays there
ReturnsFigures.right         | |
ReturnsList.wrong            | eager results, seed 0 | the list is a tuple now
KeepsScale.wrong             | eager results, seed 0 | an attribute is no longer set
DependsOnWeights.wrong       | eager results, seed 1 | other weights take the other branch
ForNegative.wrong            | results for negative numbers | negative numbers take the branch
ForInfinity.wrong            | results for infinity | what is infinite is no longer limited
ForInfinity.right            | |
ForPaddedMask.wrong          | results for integers whose last are zero | a mask that hides some
BreaksOften.wrong            | the graphs contain the model | most of it is no longer compiled
Reads.wrong                  | fullgraph=True accepts it | nothing is compiled
Draws.wrong                  | nothing stays changed | the setting stays for the whole program
Draws.right                  | |
OtherType.wrong              | both branches | the other branch has another type
ChangedLater.wrong           | both branches | the caller's tensor is no longer changed
ReturnsItself.wrong          | both branches | a copy is returned instead of the argument
WritesParameter.wrong        | Dynamo captures it | a parameter cannot be written into
CatchesItsCheck.wrong        | results for large numbers | the model catches its error
Experts.right                | a gradient of zeros instead |
TrainedExperts.wrong         | eager results, seed 0 | experts without a row get zeros
ReadsGlobals.right           | tempting.FACTOR, tempting_counts.SCALE |
CountsInObject.wrong         | results of the graph, seed 0 | it counts when it is compiled only
RemembersInDefault.wrong     | results of the graph, seed 0 | it counts when it is compiled only
SetsLater.right              | |
FillsLater.wrong             | Dynamo captures it | the seventh call writes into it
PreparesItself.wrong         | eager results, seed 0 | the call before is counted in another file
Powers.right                 | No integer read at tempting.py |
DividesInPython.right        | 100: eager mode raises Zero |
DividesByNumber.right        | as for 1 / 0 |
Levels.right                 | |
Embeds.right                 | |
Increments.right             | |
"""

INDUCTOR = {"ChecksForNan.right", "ChangesInput.right", "Powers.right", "DividesInPython.right"}
"""What Inductor compiles here, whose code may lose a check, a change in place or an error.

For the others AOTAutograd takes its place, with which Inductor begins.
"""


@dataclass(frozen=True)
class Case:
    """A fix of a model. `expected` begins the requirement or is in the condition of its row."""

    name: str
    expected: str
    why: str

    @property
    def model(self) -> type[tempting.Model]:
        return getattr(tempting, self.name.partition(".")[0])

    @property
    def change(self) -> FixChange:
        name = self.name.partition(".")[2]
        return CHANGES.get(self.name) or replaced(getattr(self.model, name))

    def arguments(self, shape: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of the first or the second shape; the caller has set the seed."""
        inputs = self.model.inputs(LARGE_BATCH if shape == "first shape" else LARGE_BATCH + 2)
        return ((), inputs) if isinstance(inputs, dict) else (inputs, {})

    def build(self, seed: int) -> tempting.Model:
        torch.manual_seed(seed)
        return self.model().train(self.model.trained)


CASES = {
    name: Case(name, expected, why)
    for name, expected, why in (map(str.strip, row.split("|")) for row in TABLE.split("\n")[1:-1])
}


def program(fixes: list[str]) -> None:
    """Verify fixes in order, in a process that can fork; print what is found of each."""
    from compilewatch.extras.fixes import code
    from compilewatch.extras.fixes.worker import script, verifying

    def subject_of(case: Case) -> verifying.ScriptSubject:
        """Return the case with its fix, from the source that is printed and written."""
        names: dict[str, Any] = {}
        manager = code.context_manager([case.change], case.name)
        exec("\n".join([*code.imports([case.change]), "\n", manager]), names)
        options = eval(script.of_subject((case.change,), train=case.model.trained), names)
        return verifying.ScriptSubject(case.build, case.arguments, names[code.NAME], **options)

    verifying.warm_up(subject_of(next(iter(CASES.values()))))
    channel = os.dup(1)
    os.dup2(2, 1)  # what the modules print
    inductor = verifying.equal_with_inductor
    for case in map(CASES.__getitem__, fixes):
        steps: list[tuple[str, verifying.Step]] = []
        compiled = inductor if case.name in INDUCTOR else partial(inductor, backend="aot_eager")
        with (
            mock.patch.object(verifying, "equal_with_inductor", compiled),
            verifying.Forks(1) as forks,
        ):
            figures = verifying.verify(
                subject_of(case), lambda *step, to=steps: to.append(step), forks
            )
        failed = {step: detail for step, (passed, detail) in steps if not passed}
        conditions = [*case.change.holds_if, *figures["holds_if"]]
        report = {"fix": case.name, "failed": failed, "holds_if": conditions}
        report |= {"single_graph": figures["single_graph"], "last": steps[-1][0]}
        os.write(channel, f"{json.dumps(report)}\n".encode())


if __name__ == "__main__":
    program(sys.argv[1:])
