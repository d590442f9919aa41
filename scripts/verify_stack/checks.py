"""What the services hold after runs, what they make of bad ones, and on which ports they listen."""

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from scripts.verify_stack.grafana import Grafana, client_of
from scripts.verify_stack.services import READY, CheckError, Stack, answered, until

HOUR = 3600 * 10**9
AGES_HOURS = (1, 3, 30, 100, 9 * 24)
"""Ages of lines: some are older than what Loki searches in its memory by default."""
LINES, LINE_BYTES, BATCH = 5_000, 1_100, 500
"""More than 4 MB, the default limit of a message between the parts of Loki."""
ANSWER_SECONDS = 20.0
"""It takes a second; an answer that is too large hangs for a minute."""

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


def version(stack: Stack, service: str) -> str:
    """Raises CheckError where the service is not healthy."""
    stack.get(service, READY.get(service, "/-/ready"))
    build = re.compile(rf'^{service}_build_info\{{.*\bversion="v?([^"]+)"', re.MULTILINE)
    found = build.search(stack.get(service, "/metrics").text)
    return found[1] if found else "of unknown version"


def ports_are_the_configured_ones(stack: Stack) -> str:
    """Every port that a service listens on is configured, and on the loopback address only."""
    found = set(stack.listening())
    for service, address, port in sorted(found):
        if not address.startswith("127.") and address != "::1":
            raise CheckError(f"{service} listens on {address}:{port}, open to others")
        if port not in stack.ports.values():
            raise CheckError(f"{service} listens on port {port}, which nobody has configured")
    return f"{len(found)} ports of {len({service for service, _, _ in found})} services"


def rules_are_loaded(stack: Stack) -> str:
    groups = stack.get("prometheus", "/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    ill = [rule["name"] for rule in rules if rule["health"] == "err"]
    if ill or not rules:
        raise CheckError(f"rules that cannot be evaluated: {', '.join(ill) or 'there are none'}")
    return f"{len(rules)} rules"


def alerts_reach_alertmanager(stack: Stack) -> str:
    known = stack.get("prometheus", "/api/v1/alertmanagers").json()["data"]["activeAlertmanagers"]
    if not any(stack.url("alertmanager").removeprefix("http://") in one["url"] for one in known):
        raise CheckError("Prometheus has found no Alertmanager")
    return ""


def queried(stack: Stack, query: str) -> list[Any]:
    answer = stack.get("prometheus", "/api/v1/query", query=query).json()
    return list(answer["data"]["result"])


Series = tuple[str, tuple[tuple[str, str], ...]]


def metrics_are_in_prometheus(stack: Stack, run: Path) -> str:
    """Every sample of the run's metrics.prom, with its value."""
    expected: dict[Series, float] = {}
    for family in text_string_to_metric_families((run / "metrics.prom").read_text()):
        for sample in family.samples:
            expected[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    exposed: dict[Series, float] = {}
    for one in queried(stack, '{job="compilewatch"}'):
        labels = {k: v for k, v in one["metric"].items() if k not in ("__name__", "job")}
        exposed[one["metric"]["__name__"], tuple(sorted(labels.items()))] = float(one["value"][1])
    # A label without a value is none to Prometheus.
    expected = {
        (name, tuple(pair for pair in labels if pair[1])): value
        for (name, labels), value in expected.items()
    }
    wrong = [series for series, value in expected.items() if exposed.get(series) != value]
    if wrong or not expected:
        example = f"{wrong[0][0]}{dict(wrong[0][1])}" if wrong else "metrics.prom is empty"
        raise CheckError(f"{len(wrong)} of {len(expected)} series are missing or other: {example}")
    return f"{len(expected)} series of {len({name for name, _ in expected})} metrics"


def papers_are_in_prometheus(stack: Stack) -> str:
    if not queried(stack, 'compilewatch_papers{job="compilewatch_papers"}'):
        raise CheckError("Prometheus has no metrics of papers")
    return ""


def lines(stack: Stack) -> Counter[str]:
    """Every line of every run, from the files."""
    paths = stack.outputs.glob("[0-9]*/logs/*.jsonl")
    return Counter(line for path in paths for line in path.read_text().splitlines())


def lines_are_in_loki_once(stack: Stack) -> str:
    expected = lines(stack)
    now = time.time_ns()
    found = Counter(logged(stack, '{service_name="compilewatch"}', now - 6 * HOUR))
    missing, more = expected - found, found - expected
    if missing or more or not expected:
        example = next(iter([*more, *missing]), "")[:120]
        raise CheckError(
            f"of {expected.total()} lines {missing.total()} are missing and {more.total()} too "
            f"many: {example}"
        )
    return f"{expected.total()} lines"


def sent_by_alloy(stack: Stack) -> int:
    """How many lines Alloy has sent since it started."""
    text = stack.get("alloy", "/metrics").text
    counts = re.findall(r"^loki_write_sent_entries_total\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, counts)))


def alloy_has_sent(stack: Stack, count: int) -> str:
    if (sent := sent_by_alloy(stack)) < count:
        raise CheckError(f"Alloy has sent {sent} of {count} lines")
    return ""


def logged(stack: Stack, selector: str, start: int) -> list[str]:
    """The lines in Loki since a time in nanoseconds."""
    answer = stack.get(
        "loki",
        "/loki/api/v1/query_range",
        query=selector,
        limit=str(LINES),
        start=str(start),
        end=str(time.time_ns() + 60 * 10**9),
    ).json()
    return [line for one in answer["data"]["result"] for _, line in one["values"]]


def late_lines_are_returned(stack: Stack) -> str:
    """Lines of up to nine days ago, without waiting for Loki to write them."""
    now, mark = time.time_ns(), str(time.time_ns())
    for age in AGES_HOURS:
        labels = {"service_name": "verify", "mark": mark, "hour": str(age)}
        _push(stack, labels, [(now - age * HOUR, f"{age} hours old")])
    found = logged(stack, f'{{service_name="verify", mark="{mark}"}}', now - 10 * 24 * HOUR)
    if missing := {f"{age} hours old" for age in AGES_HOURS} - set(found):
        raise CheckError(f"accepted and not returned: {', '.join(sorted(missing))}")
    return f"{len(found)} lines of up to {max(AGES_HOURS) // 24} days ago"


def a_large_answer_arrives(stack: Stack) -> str:
    now, mark = time.time_ns(), str(time.time_ns())
    for start in range(0, LINES, BATCH):
        lines = [
            (now - number * 1000, f"{number} ".ljust(LINE_BYTES, "x"))
            for number in range(start, start + BATCH)
        ]
        # A stream may grow by 3 MB in a second, and all together by 4 MB.
        _push(stack, {"service_name": "verify", "mark": mark, "part": str(start)}, lines)
        time.sleep(0.3)
    began = time.monotonic()
    found = logged(stack, f'{{service_name="verify", mark="{mark}"}}', now - HOUR)
    seconds = time.monotonic() - began
    size = sum(map(len, found))
    if len(found) != LINES or seconds > ANSWER_SECONDS:
        raise CheckError(f"{len(found)} of {LINES} lines in {seconds:.1f} s")
    return f"{len(found)} lines, {size / 1e6:.1f} MB in {seconds:.1f} s"


def _push(stack: Stack, labels: dict[str, str], lines: list[tuple[int, str]]) -> None:
    values = [[str(at), line] for at, line in lines]
    answer = requests.post(
        stack.url("loki") + "/loki/api/v1/push",
        data=json.dumps({"streams": [{"stream": labels, "values": values}]}),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    answered("Loki", answer)


def push(stack: Stack, metrics: str) -> None:
    """Replace the group, as a run does."""
    address = stack.url("pushgateway") + GROUP
    answered("the Pushgateway", requests.put(address, data=typed(metrics).encode(), timeout=60))


def typed(metrics: str) -> str:
    """With the type of each metric: a Pushgateway that holds runs rejects another one, or none."""
    lines: list[str] = []
    for line in metrics.strip().splitlines():
        kind = f"# TYPE {line.partition('{')[0]} gauge"
        if kind not in lines:
            lines.append(kind)
        lines.append(line)
    return "\n".join([*lines, ""])


def a_fix_shows_exactly(stack: Stack) -> str:
    """The headline after a run that broke models, and after the one that repaired them."""
    grafana, found = client_of(stack), []
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


def in_turn(stack: Stack, check: Callable[[Stack], str]) -> str:
    """Run a check and delete its group, whatever becomes of it."""
    try:
        return check(stack)
    finally:
        # An error here would take the place of an end by a signal.
        with contextlib.suppress(requests.RequestException):
            requests.delete(stack.url("pushgateway") + GROUP, timeout=60)
