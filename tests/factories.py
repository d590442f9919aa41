"""Small, complete records for tests: override what a test is about, leave the rest."""

from pathlib import Path
from typing import Any

import msgspec

from compilewatch import records
from compilewatch.config import Places, Settings, load_settings


def spec(name: str = "BertModel", **fields: Any) -> records.ModelSpec:
    given = {
        "source": "library",
        "build": records.ClassBuild(class_name=name),
        "architecture": name,
    }
    return records.ModelSpec(name=name, **{**given, **fields})


def request(name: str = "BertModel", **fields: Any) -> records.Request:
    """Fields that `ModelSpec` has go to the model, the others to the request."""
    of_model = {k: fields.pop(k) for k in list(fields) if k in records.ModelSpec.__struct_fields__}
    given = {"model": spec(name, **of_model), "target": records.Target(), "key": f"key of {name}"}
    return records.Request(**{**given, **fields})


def graph_break(
    place: str = "forward", gb_id: str | None = "GB0170", **fields: Any
) -> records.GraphBreak:
    """A break whose fingerprint follows from its code and place, as the real one does."""
    given: dict[str, Any] = {
        "code": gb_id or "unbacked_symint",
        "gb_id": gb_id,
        "gb_type": "Data-dependent branching" if gb_id == "GB0170" else gb_id and f"Type {gb_id}",
        "reason": f"reason of {gb_id} in {place}",
        "fingerprint": f"{gb_id}:{place}",
        "file": "transformers/models/bert/modeling_bert.py",
        "line": 12,
        "function": place,
    }
    return records.GraphBreak(**{**given, **fields})


def result(
    name: str = "BertModel",
    status: records.Status = records.Status.PASS,
    breaks: tuple[records.GraphBreak, ...] = (),
    **fields: Any,
) -> records.Result:
    """`breaks` make it a graph_break. Fields of a model or request are passed on to them."""
    inner = {
        k: fields.pop(k)
        for k in list(fields)
        if k in {*records.ModelSpec.__struct_fields__, *records.Request.__struct_fields__}
        and k not in records.Result.__struct_fields__
    }
    if breaks:
        status = records.Status.GRAPH_BREAK
    ran = status in (records.Status.PASS, records.Status.GRAPH_BREAK)
    given: dict[str, Any] = {
        "request": request(name, **inner),
        "status": status,
        "phase": records.Phase.DONE if ran else records.Phase.COMPILE,
        "tier": records.Tier.FAKE,
        "depth": records.Depth.FULL,
        "breaks": breaks,
        "graph_breaks": sum(b.occurrences for b in breaks) if ran else None,
        "distinct_breaks": len(breaks) if ran else None,
        "fullgraph": records.FullgraphVerdict(accepted=not breaks) if ran else None,
        "durations": {"create": 0.5, "compile": 1.5}
        if status is not records.Status.SKIPPED
        else {},
        "started_at": "2026-01-02T03:04:05.000000000Z",
    }
    if status is records.Status.ERROR:
        given["error"] = error()
    return records.Result(**{**given, **fields})


def shapes(*compilations: int, lines: tuple[int, ...] = (), limit: bool = False) -> records.Shapes:
    """Compilations as called and with `dynamic=True`; each of `lines` causes one of the former."""
    place: dict[str, Any] = {"file": "transformers/models/bert/modeling_bert.py", "function": "f"}
    again = tuple(
        records.Recompilation(
            call=number,
            line=1,
            guards=(),
            kind=records.RecompilationKind.MODULO,
            subject="input_ids.1",
            needed_by=records.StackFrame(line=line, text="if size % 8:", **place),
            **place,
        )
        for number, line in enumerate(lines, start=2)
    )
    as_called, dynamic = (
        records.TraceFigures(compiled=(count, 0, 0), dynamic=("input_ids.0",))
        for count in compilations
    )
    reached = records.CodePlace(line=1, **place) if limit else None
    as_called = msgspec.structs.replace(as_called, recompilations=again, limit=reached)
    return records.Shapes(as_called=as_called, dynamic=dynamic)


def error(
    code: str = "backend_error", type: str = "builtins.ValueError", **fields: Any
) -> records.ErrorRecord:
    given = {"message": "it failed", "head": "Traceback", **fields}
    return records.ErrorRecord(type=type, code=code, **given)


def environment(**fields: Any) -> records.Environment:
    given: dict[str, Any] = {
        "name": "default",
        "python_executable": "python",
        "python": "3.11.7",
        "torch": "2.13.0",
        "torch_git": "a" * 40,
        "transformers": "5.23.0",
        "device": "cpu",
        "packages": {"numpy": "2.4.6"},
    }
    made = {**given, **fields}
    made.setdefault("digest", f"{made['torch']}/{made['torch_git']}/{made['transformers']}")
    return records.Environment(**made)


def run(id: str = "20260102-030405-0001", **fields: Any) -> records.Run:
    given: dict[str, Any] = {
        "started_at": "2026-01-02T03:04:05.000000000Z",
        "source": "library",
        "environments": (environment(),),
        "planned": 1,
        "plan_digest": "plan",
        "state": "finished",
        "finished_at": "2026-01-02T03:05:05.000000000Z",
        "wall_seconds": 60.0,
        "settings": {"targets": ["dynamo"], "depth": "full", "tier": "auto"},
    }
    return records.Run(id=id, **{**given, **fields})


def view(*results: records.Result, **fields: Any) -> records.RunView:
    """A view of results; fields of `RunView` are its own, the others its run's."""
    own = {k: fields.pop(k) for k in list(fields) if k in records.RunView.__dataclass_fields__}
    made = run(**{"planned": len(results), **fields})
    return records.RunView(**{"run": made, "results": results, **own})


def settings(**changes: Any) -> Settings:
    """The default settings but for these, named as variables name them: `loki_url`."""
    return load_settings(changes, folder=Path("/"), environ={})


def places(transformers: Path | None = None, environment: str = "", **changes: Any) -> Places:
    """What sources read, with the settings of this process but for `changes`."""
    return Places(
        settings=load_settings(changes), transformers=transformers, environment=environment
    )


def chaos(behaviour: str) -> records.ModelSpec:
    """A model of `tests.chaos`, which any process of this checkout can build."""
    build = records.FactoryBuild(
        factory=f"tests.chaos:{behaviour}",
        path=str(Path(__file__).parents[1]),
        inputs=f"tests.chaos:inputs_of_{behaviour}",
    )
    return records.ModelSpec(source="manifest", name=behaviour, build=build)
