"""What `compilewatch doctor` says about the sandbox."""

from __future__ import annotations

from compilewatch.cli.verbs.doctor import DoctorCheck
from compilewatch.errors import CompilewatchError
from compilewatch.extras.executor import sandbox


def sandbox_check() -> DoctorCheck:
    """Whether code that nobody has reviewed can be confined here."""
    try:
        sandbox.check()
    except CompilewatchError as error:
        return DoctorCheck(
            name="sandbox",
            state="note",
            fact="generated code and jobs of the executor do not run",
            advice=str(error),
        )
    return DoctorCheck(
        name="sandbox", state="ok", fact="bubblewrap holds against the attacks tried"
    )
