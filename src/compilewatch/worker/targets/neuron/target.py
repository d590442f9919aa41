"""The Neuron target: does AWS's compiler produce executables of the model, and are they correct?

Which route evaluates it depends on what the environment has (`contract.targets`). A request for a
declared device is a forecast.
"""

import importlib
from pathlib import Path

from compilewatch import records
from compilewatch.contract.targets import route_of
from compilewatch.neuron import installed
from compilewatch.worker.process.describe import installed_packages
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget


class NeuronTarget(CompileTarget):
    """`backend` names the instance family (trn1, trn1n, inf2, trn2, trn3).

    The default is the family of this machine if it has NeuronCores; otherwise that of the route.
    """

    name = "neuron"

    def __init__(self) -> None:
        packages = installed_packages()
        self._route = route_of(self.name, packages)
        found = installed.placeholders(), installed.machine()
        self._problem = installed.problem(packages, *found)

    @property
    def tiers(self) -> tuple[records.Tier, ...]:  # type: ignore[override]
        """A forecast needs no values; the other routes run or compile in the weights."""
        forecast = self._route is not None and self._route.forecast
        return (*(records.Tier.FAKE,) * forecast, records.Tier.REAL)

    def missing(self) -> str | None:
        if self._route is not None:
            needs_product = self._route.name in ("native", "xla")
            return (self._problem or None) if needs_product else None
        return self._problem or (
            "no torch_neuronx and no torch-mlir: compilewatch env create lowering (a forecast), "
            "or neuron (docs/neuron.md)"
        )

    def unable(self) -> str | None:
        if self._route is not None and self._route.forecast:
            return "a forecast, not a verdict: torch-mlir without TorchNeuron (docs/neuron.md)"
        return self.missing()

    def prepare(self, request: records.Request, folder: Path) -> str | None:
        if self._route is None or self._route.name != "native":
            return None
        from compilewatch.worker.targets.neuron import native

        return native.prepare(request, folder)

    def run(self, subject: Subject) -> records.TargetOutcome:
        """Evaluate the subject by the route of this environment."""
        assert self._route is not None
        if subject.request.target.dynamic:
            detail = "Neuron compiles static shapes only (NCC_EMOD025): leave out dynamic"
            return records.TargetOutcome(status=records.Status.UNSUPPORTED, detail=detail)
        module = {"native": "native", "lowering": "lowering"}.get(self._route.name, "xla")
        evaluate = importlib.import_module(f"compilewatch.worker.targets.neuron.{module}").evaluate
        return evaluate(subject)  # type: ignore[no-any-return]

    def probe(self, subject: Subject) -> records.TargetOutcome:
        """Evaluate a model that reads values, with real tensors on the CPU."""
        return self.run(subject)
