"""What compilewatch says of one graph for the models of one_graph.py, from a process like a worker.

Prints one JSON object, model -> `OneGraph`, by the backend aot_eager.
"""

import tempfile
from pathlib import Path

import msgspec
import one_graph  # type: ignore[import-not-found]  # beside this file
import torch

from compilewatch.extras.shapes.records import REPORT_FILE, OneGraph
from compilewatch.extras.shapes.worker.one_graph import one_graph as evaluate
from compilewatch.records import FactoryBuild, ModelSpec, Request, Target, Tier
from compilewatch.worker.subject import ExampleInputs, Subject

DOMAINS = {"x.0": (True, (1, 64)), "x.1": (True, (1, 256))}


def evaluated(model: type[torch.nn.Module], folder: Path) -> OneGraph:
    build = FactoryBuild(factory=f"one_graph:{model.__name__}", path="", inputs="one_graph:inputs")
    request = Request(
        model=ModelSpec(source="test", name=model.__name__, build=build),
        target=Target(name="dynamo", backend="aot_eager"),
        key=model.__name__,
        tier=Tier.REAL,
    )
    subject = Subject(
        request=request,
        module=model().eval(),
        inputs=ExampleInputs(strategy="factory", args=one_graph.inputs()),
        fake_mode=None,
        artifacts=folder,
        enter=lambda _phase: None,
    )
    evaluate(subject, {"domains": DOMAINS, "limits": []})
    return msgspec.json.decode((folder / REPORT_FILE).read_bytes(), type=OneGraph)


if __name__ == "__main__":
    torch.set_num_threads(1)
    models = (*one_graph.WRONG, *one_graph.SOUND)
    with tempfile.TemporaryDirectory() as folder:
        results = {model.__name__: evaluated(model, Path(folder)) for model in models}
    print(msgspec.json.encode(results).decode())
