"""AOTAutograd for the fake tier: traces the joint graph of forward and backward without running it.

AOTAutograd captures loss and backward by tracing them with fake tensors. If the inputs are fake
too, running the result shows nothing that the trace did not, and takes a quarter of the time;
partitioning it into two graphs and compiling those takes another tenth. The two graphs are
therefore reduced to their inputs and to outputs of the right size, stride and dtype.

Code between graphs may read the output of a graph if it depends on known values only
(`worker/model/fake_mode.py`). Only integer and boolean tensors are read in this way, so a graph
that returns one that does not depend on weights runs unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import default_partition
from torch.fx import Graph, GraphModule, Node

from compilewatch.worker.targets.dynamo.operators import FORWARD_OPERATORS, forward_operators

_STAND_IN = torch.ops.aten.empty_strided.default
"""Takes no tensor as input. Made from a constant of a fake tensor, its output would be real."""

_TAG = "partitioner_tag"


def unexecuted_backend(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend for `torch.compile` that stops before `aot_eager_default_partitioner` runs.

    What it returns says how many operators its forward would run (`FORWARD_OPERATORS`), where there
    is a joint graph: without a gradient, the graph runs as it is.
    """
    counts: list[int] = []

    def partition(
        joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[GraphModule, GraphModule]:
        counts.append(forward_operators(joint, num_fwd_outputs))
        return unexecuted_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=boxed_nop,
        bw_compiler=boxed_nop,
        partition_fn=partition,
        keep_inference_input_mutations=False,
    )
    compiled: Callable[..., Any] = backend(graph, inputs)

    def run(*args: Any) -> Any:
        return compiled(*args)

    if counts:
        setattr(run, FORWARD_OPERATORS, counts[-1])
    return run


unexecuted_backend.__name__ = "compiler_fn"  # the name in torch's own messages (AotAutograd)


def unexecuted_partition(
    joint: GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **options: Any,
) -> tuple[GraphModule, GraphModule]:
    """Return the forward and backward graphs, without their operations if that is safe.

    The arguments are those of torch's `default_partition`, which partitions the joint graph.
    """
    _cut_down(joint.graph, num_fwd_outputs, static_lifetime_input_indices or ())
    parts: tuple[GraphModule, GraphModule] = default_partition(
        joint,
        joint_inputs,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static_lifetime_input_indices,
        **options,
    )
    return parts


def _cut_down(graph: Graph, forward_outputs: int, weights: Sequence[int]) -> None:
    """Replace the computation of the outputs; a graph that must run is not changed."""
    placeholders = graph.find_nodes(op="placeholder")
    primals = [node for node in placeholders if "tangents" not in str(node.target)]
    (output,) = graph.find_nodes(op="output")
    (results,) = output.args
    forward, backward = results[:forward_outputs], results[forward_outputs:]
    unknown = {primals[index] for index in weights if index < len(primals)}
    computed = [node for node in results if isinstance(node, Node) and node.op != "placeholder"]
    if not all(map(_is_plain_tensor, computed)) or _has_effects(graph):
        return
    if any(_may_be_read(node, unknown) for node in forward if node in computed):
        return
    stand_ins: dict[Node, Node] = {}
    with graph.inserting_before(output):
        for tag, nodes in (("is_forward", forward), ("is_backward", backward)):
            for node in nodes:
                if isinstance(node, Node) and node.op != "placeholder" and node not in stand_ins:
                    stand_ins[node] = _stand_in(graph, node, tag)
    output.args = (type(results)(stand_ins.get(node, node) for node in results),)
    graph.eliminate_dead_code()


def _stand_in(graph: Graph, node: Node, tag: str) -> Node:
    value = node.meta["val"]
    stand_in = graph.call_function(
        _STAND_IN,
        (list(value.shape), list(value.stride())),
        {"dtype": value.dtype, "device": value.device},
    )
    stand_in.meta = {"val": value, _TAG: tag}
    return stand_in


def _is_plain_tensor(node: Node) -> bool:
    """Whether a node is a dense tensor of a fixed size."""
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    )


def _has_effects(graph: Graph) -> bool:
    """Whether a graph does anything besides computing its outputs."""
    return any(
        node.op not in ("placeholder", "output", "get_attr")
        and (
            isinstance(node.target, torch._ops.HigherOrderOperator)
            or (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable)
        )
        for node in graph.nodes
    )


def _may_be_read(node: Node, unknown: Iterable[Node]) -> bool:
    """Whether eager code may read the values of a result: known integers or booleans."""
    value = node.meta["val"]
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return False
    seen: set[Node] = set()
    left = [node]
    while left:
        source = left.pop()
        if source in unknown:
            return False
        if source not in seen:
            seen.add(source)
            left += source.all_input_nodes
    return True
