"""The source `chaos`: built-in models that fail on purpose (`--source chaos`)."""

from __future__ import annotations

from compilewatch.records import ChaosBuild, ModelSpec

BEHAVIOURS = (
    "abort",
    "allocate",
    "break",
    "die_after_result",
    "exit",
    "garbage",
    "grandchildren",
    "hang_compile",
    "hang_create",
    "hang_eager",
    "hang_inputs",
    "hang_setup",
    "huge_error",
    "ignore_terminate",
    "kill_server",
    "ok",
    "reads_value",
    "segfault",
    "system_exit",
)
"""The keys of `worker.model.chaos.BEHAVIOURS`, which imports torch; a test compares the two."""


class ChaosSource:
    """Every chaos model, by name: failures that a sweep must survive."""

    name = "chaos"

    def models(self) -> tuple[ModelSpec, ...]:
        return tuple(
            ModelSpec(
                source=self.name,
                name=f"chaos/{behaviour}",
                build=ChaosBuild(behaviour=behaviour),
                architecture=f"chaos_{behaviour}",
                family="chaos",
                task="chaos",
            )
            for behaviour in BEHAVIOURS
        )
