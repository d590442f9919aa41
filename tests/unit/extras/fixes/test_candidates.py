"""What is proposed for the reason of a break, and what the proposed source does when it is run."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from compilewatch.extras.fixes.candidates import Place, after_rejection, proposals
from compilewatch.extras.fixes.records import FixChange
from compilewatch.records import ClassBuild, GraphBreak, ModelSpec, StackFrame, TensorSummary
from tests.factories import graph_break, request

ITEM = "Tensor.item() call with capture_scalar_outputs=False"
ALWAYS = {"call once before compiling"}


def place(*inputs: TensorSummary) -> Place:
    build = ClassBuild(class_name="Net")
    spec = ModelSpec(source="library", name="Net", build=build)
    return Place(request=request(model=spec), source_of=lambda _: None, inputs=inputs)


def proposed(found: GraphBreak, *inputs: TensorSummary) -> dict[str, FixChange]:
    changes = proposals([found], place(*inputs))
    assert all(each.holds_if for each in changes)  # what no script can try is said of each
    return {each.name: each for each in changes}


def test_a_setting_is_proposed_for_the_reason_that_names_it() -> None:
    for reason, name in {
        ITEM: "capture_scalar_outputs=True",
        "aten.nonzero's output shape depends on input Tensor data": "capture_dynamic_output",
        "Set torch._dynamo.config.allow_rnn=True": "allow_rnn=True",
        "Set graph_break_on_nn_param_ctor": "graph_break_on_nn_param_ctor=False",
        "LOAD_BUILD_CLASS is not supported": "enable_trace_load_build_class=True",
        "torch.autograd.grad is not supported": "trace_autograd_ops=True",
        "Dynamo recompile limit exceeded": "recompile_limit=64",
        "ignore_logging_functions.add(logger.warning_once)": "ignore_logging_functions: warning",
        "how to trace the Python builtin `_warnings.warn`": "ignore_logging_functions: warnings.w",
        "Developer debug context: builtin print [] False": "reorderable_logging_functions: print",
    }.items():
        names = set(proposed(graph_break(reason=reason))) - ALWAYS
        assert any(each.startswith(name) for each in names), names
    assert set(proposed(graph_break(reason="a branch that depends on data"))) == ALWAYS


def test_small_integers_are_given_as_numbers_and_data_are_not() -> None:
    rows: tuple[tuple[str, tuple[int, ...], str], ...] = (
        ("image_grid_thw", (2, 3), "int64"),
        ("input_ids", (2, 4), "int64"),
        ("attention_mask", (2, 4), "int64"),
        ("pixel_values", (2, 3), "float32"),
        ("indices", (9, 9), "int64"),
        ("args[0]", (2,), "int64"),
    )
    inputs = (TensorSummary(name=name, shape=shape, dtype=dtype) for name, shape, dtype in rows)
    names = proposed(graph_break(reason=ITEM), *inputs)
    assert [name for name in names if name.endswith("as numbers")] == [
        "image_grid_thw given as numbers"
    ]


def test_a_check_of_tensors_is_replaced_where_a_break_is_at_its_call() -> None:
    source = ("    torch._check_tensor_all(cond)",)
    found = proposed(graph_break(reason=ITEM, source=source, source_start=1))
    assert "torch._check_tensor_all replaced" in found
    assert "torch._check_tensor_all replaced" not in proposed(graph_break(reason=ITEM))
    # A second shape that fails is compiled by itself.
    more = after_rejection("results of Inductor: PendingUnbackedSymbolNotFound: u0")
    assert more is not None
    assert more.name == "dynamic=False"
    assert after_rejection("eager results, seed 0: output differs by 1") is None


def in_force(file: str, name: str, stack: ExitStack, model: Any) -> Any:
    """Put the change in force that is proposed for a frame of this file; return the arguments."""
    frame = StackFrame(file=file, line=1, function="forward")
    change = proposed(graph_break(reason="x", user_stack=(frame,)))[name]
    names: dict[str, Any] = {"stack": stack, "model": model, "kwargs": {}}
    for text in (*change.imports, *change.definitions, "\n".join(change.lines)):
        exec(text, names)
    return names["kwargs"]


def test_arguments_are_put_back_and_given_to_models_that_take_them_only() -> None:
    config = SimpleNamespace(_attn_implementation="sdpa")
    model = SimpleNamespace(
        config=config,
        set_attn_implementation=lambda name: setattr(config, "_attn_implementation", name),
    )
    with ExitStack() as stack:
        in_force("net/attention.py", "attention implementation eager", stack, model)
        assert config._attn_implementation == "eager"
        for forward, expected in (
            (lambda x, use_cache: x, {"use_cache": False}),
            (lambda x: x, {}),
        ):
            model.forward = forward
            assert in_force("net/cache_utils.py", "use_cache=False", stack, model) == expected
    assert config._attn_implementation == "sdpa"


TEAM = """
def locked(x):
    with LOCK:
        return x

class Net:
    def forward(self, x):
        return self.part(x)
"""


def traced(reason: str, *frames: tuple[str, str]) -> list[str]:
    """The functions that are to be traced without Dynamo, for a stack, the innermost frame last."""
    stack = tuple(StackFrame(file=file, line=1, function=function) for file, function in frames)
    found = graph_break(reason=reason, user_stack=stack)
    where = Place(request=place().request, source_of=lambda file: TEAM if "team" in file else None)
    return [each.name for each in proposals([found], where) if each.once]


def test_the_innermost_function_of_a_module_is_traced_without_dynamo() -> None:
    reason = "Unsupported context manager"
    stack = (("team/net.py", "forward"), ("team/net.py", "locked"), ("torch/nn.py", "locked"))
    assert traced(reason, *stack) == ["team.net.locked traced without Dynamo"]
    assert traced(reason, ("team/net.py", "forward")) == []  # a method
    assert traced(reason, ("other/net.py", "locked")) == []  # a file that cannot be read
    assert traced("Data-dependent branching", *stack) == []  # remains without Dynamo
    assert traced(ITEM, *stack) == []


DOWNSAMPLING = """
class Down:
    def __init__(self, steps):
        self.steps = steps
        self.count = 0

    def forward(self, x):
        self.count = self.count + 1
        r = 2 if self.steps else self.count
        return self.other if x.steps else r
"""


def test_a_constant_attribute_is_proposed_as_a_python_value() -> None:
    def held(
        reason: str, line: int, source: str | None = DOWNSAMPLING, file: str = "net/down.py"
    ) -> list[str]:
        found = graph_break(reason=reason, file=file, line=line)
        where = Place(request=place().request, source_of=lambda _: source)
        return [e.name for e in proposals([found], where) if e.name.endswith("Python value")]

    branching = "Data-dependent branching"
    assert held(branching, 9) == held(ITEM, 9) == ["steps as a Python value"]
    assert held("Unsupported context manager", 9) == []
    assert held(branching, 8) == []  # counts
    assert held(branching, 10) == []  # of another object, and one that nothing assigns
    assert held(branching, 9, file="torch/nn/down.py") == []
    assert held(branching, 9, "not Python") == held(branching, 9, None) == []


CHECKS = """\
class Net:
    def checked(self, x):
        if x.max() > 3:
            raise ValueError("too large")
        return x

    def forward(self, x):
        {within}
            return self.checked(x)
        {then}
            return x * 0
"""


def test_a_check_whose_error_the_model_catches_is_not_rewritten() -> None:
    """The error would be of another type, and come from the graph, where nothing catches it."""
    lines = ((9, "forward"), (3, "checked"))
    stack = tuple(StackFrame(file="lib/a.py", line=n, function=name) for n, name in lines)
    found = graph_break(
        code="GB0170", reason="data-dependent", file="lib/a.py", line=3, user_stack=stack
    )
    for within, then, rewritten in (
        ("if x.dim():", "else:", True),
        ("try:", "finally:", True),
        ("try:", "except ValueError:", False),
        ("with contextlib.suppress(ValueError):", "if True:", False),
    ):
        source = CHECKS.format(within=within, then=then)
        where = Place(request=place().request, source_of={"lib/a.py": source}.get)
        changes = proposals([found], where)
        assert any(c.name.startswith("check in the graph") for c in changes) == rewritten, within
