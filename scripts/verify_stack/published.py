"""What the stack makes of a run with broken models, and of the one that repairs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import requests

from scripts.verify_stack.grafana import Grafana
from scripts.verify_stack.report import CheckError, until
from scripts.verify_stack.services import Stack

SOURCE = "verify"
"""A source of models that no run has."""
GROUP = f"/metrics/job/compilewatch/source/{SOURCE}/target/dynamo"
SECONDS = 420.0
"""A scrape every two minutes, an evaluation of the rules every minute, and a minute to end."""

MODEL = 'mode="eval",model="BertModel",family="bert",status="graph_break"'
BROKEN = f"""
compilewatch_results{{mode="eval",status="pass"}} 20
compilewatch_results{{mode="eval",status="graph_break"}} 5
compilewatch_verdicts{{mode="eval"}} 25
compilewatch_downloads{{mode="eval",status="pass"}} 600e6
compilewatch_downloads{{mode="eval",status="graph_break"}} 395e6
compilewatch_downloads{{mode="eval",status="mismatch"}} 5e6
compilewatch_regressed_models{{mode="eval"}} 1
compilewatch_regressed_since_timestamp_seconds{{{MODEL}}} 1.7e9
"""
FIXED = """
compilewatch_results{mode="eval",status="pass"} 25
compilewatch_verdicts{mode="eval"} 25
compilewatch_downloads{mode="eval",status="pass"} 995e6
compilewatch_downloads{mode="eval",status="graph_break"} 5e6
compilewatch_regressed_models{mode="eval"} 0
"""
EXACT = {"broken": 0.6, "fixed": 0.995}


def push(stack: Stack, metrics: str) -> None:
    """Replace the group, as a run does."""
    address = stack.url("pushgateway") + GROUP
    answer = requests.put(address, data=typed(metrics).encode(), timeout=60)
    if not answer.ok:
        raise CheckError(f"the Pushgateway answers {answer.status_code}: {answer.text[:200]}")


def typed(metrics: str) -> str:
    """With the type of each metric: a Pushgateway that holds runs rejects another one, or none."""
    lines: list[str] = []
    for line in metrics.strip().splitlines():
        kind = f"# TYPE {line.partition('{')[0]} gauge"
        if kind not in lines:
            lines.append(kind)
        lines.append(line)
    return "\n".join([*lines, ""])


def retire(stack: Stack) -> None:
    requests.delete(stack.url("pushgateway") + GROUP, timeout=60)


def a_fix_shows_exactly(stack: Stack, grafana: Grafana) -> str:
    """The headline after a run that broke models, and after the one that repaired them."""
    found = []
    for name, metrics in (("broken", BROKEN), ("fixed", FIXED)):
        push(stack, metrics)
        found.append(until(SECONDS, partial(_headline_is, grafana, EXACT[name])))
    return " and ".join(found)


def _headline_is(grafana: Grafana, expected: float) -> str:
    values = grafana.values_of("compilewatch-overview", "Weighted by downloads", source=SOURCE)
    if values != [expected]:
        raise CheckError(f"the headline is {values or 'empty'}, and {expected} is true")
    return f"{expected:.1%}"


def an_alert_fires_and_ends(stack: Stack) -> str:
    """The alert about a regression, with the model in its text, and its end."""
    push(stack, BROKEN)
    text = until(SECONDS, partial(_fires, stack))
    push(stack, FIXED)
    until(SECONDS, partial(_has_ended, stack))
    return text


def _fires(stack: Stack) -> str:
    for alert in _alerts(stack):
        said = alert["annotations"]
        if "BertModel (graph break)" not in said["description"]:
            raise CheckError(f"the alert does not name the model: {said['description']}")
        if not said["dashboard_url"].startswith("http"):
            raise CheckError(f"the alert's link is not absolute: {said['dashboard_url']}")
        return str(said["summary"])
    raise CheckError("no alert about the regression has reached Alertmanager")


def _has_ended(stack: Stack) -> str:
    if _alerts(stack):
        raise CheckError("the alert about the regression has not ended")
    return ""


def _alerts(stack: Stack) -> list[dict[str, dict[str, str]]]:
    wanted = {"filter": f'source="{SOURCE}"', "active": "true"}
    found = stack.get("alertmanager", "/api/v2/alerts", **wanted).json()
    return [one for one in found if one["labels"]["alertname"] == "CompilewatchRegression"]


def in_turn(stack: Stack, check: Callable[[], str]) -> str:
    """Run a check and retire its group, whatever becomes of it."""
    try:
        return check()
    finally:
        retire(stack)
