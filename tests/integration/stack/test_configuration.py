"""The services' configuration, by their own checkers where this machine has them."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from compilewatch.sinks.prometheus import all_definitions
from dashboards.frame import TITLES
from tests import services

ROOT = Path(__file__).parents[3]
STACK = ROOT / "stack"
RULES = STACK / "prometheus" / "rules"
RULE_TESTS = sorted((Path(__file__).parent / "rules").glob("*_test.yml"))
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
SCRIPT = (ROOT / "scripts" / "stack.sh").read_text()
GATEWAYS_OWN = ("push_time_seconds", "push_failure_time_seconds")
ALERTS = [
    rule
    for path in sorted(RULES.glob("*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(services.program("promtool", package="prometheus"), *arguments)


def rendered(*arguments: str, **environment: str) -> str:
    """Prometheus' configuration as compose.yaml and stack.sh have it made."""
    done = run("sh", STACK / "prometheus" / "render.sh", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_prometheus_takes_its_configuration_with_and_without_the_scrape(tmp_path: Path) -> None:
    base = rendered(GRAFANA_EXTERNAL_URL="https://g.example.org/", RUNBOOK_URL="a?b='1&c|d\\e")
    scrape = (STACK / "prometheus" / "scrape_pushgateway.yml").read_text()
    config = tmp_path / "prometheus.yml"
    for text in (base, base + scrape):
        config.write_text(text)
        checked = promtool("check", "config", "--syntax-only", config)
        assert checked.returncode == 0, checked.stderr
    loaded = yaml.safe_load(base + scrape)
    assert loaded["scrape_configs"][0]["honor_labels"] is True
    labels = loaded["global"]["external_labels"]
    assert labels == {"grafana_url": "https://g.example.org", "runbook_url": "a?b='1&c|d\\e"}
    # They are for the text of alerts, and would otherwise be labels of each.
    (drop,) = loaded["alerting"]["alert_relabel_configs"]
    assert (drop["action"], {*drop["regex"].split("|")}) == ("labeldrop", set(labels))


def test_a_prometheus_gets_its_retention_where_it_reads_it(tmp_path: Path) -> None:
    """Debian's does not know the setting of the file, whose place alone is checked."""
    tsdb = yaml.safe_load(rendered("--retention", PROMETHEUS_RETENTION="9d"))["storage"]["tsdb"]
    assert tsdb["retention"] == {"time": "9d", "size": "8GB"}
    assert "retention" not in yaml.safe_load(rendered())["storage"]["tsdb"]
    (line,) = COMPOSE["prometheus"]["command"]
    assert "render.sh --retention" in line
    assert "storage.tsdb.retention" not in line
    fake = tmp_path / "prometheus"
    function = re.search(r"^retention_is_in_file\(\) \{.*?^\}", SCRIPT, re.DOTALL | re.MULTILINE)
    assert function is not None
    asked = f'{function[0]}\nif retention_is_in_file "{fake}"; then echo file; else echo flags; fi'
    given = {"2.42.0+ds": "flags", "3.12.1": "flags", "3.13.0": "file", "4.0.0": "file"}
    for version, place in given.items():
        fake.write_text(f"#!/bin/sh\necho 'prometheus, version {version} (branch: HEAD)'\n")
        fake.chmod(0o755)
        assert run("bash", "-c", asked).stdout.strip() == place, version


def test_each_alert_says_what_it_is_and_what_to_do() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    named = {"summary", "description", "runbook_url", "dashboard_url"}
    # Absolute where the address is set: a mail has no page that a relative one could refer to.
    runbook = "{{ with $externalLabels.runbook_url }}{{ . }}{{ else }}docs/alerts.md{{ end }}"
    for alert in ALERTS:
        name, said = alert["alert"], alert["annotations"]
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert set(said) == named
        assert said["runbook_url"] == f"{runbook}#{name.lower()}"
        assert name in headings
        dashboard = re.match(
            r"\{\{ \$externalLabels\.grafana_url \}\}/d/([\w-]+)", said["dashboard_url"]
        )
        assert dashboard is not None
        assert dashboard[1] in TITLES
        # No outage ends an alert about results.
        about_results = re.search("Regression|Compilations|Slower|Share|Coverage|Untestable", name)
        assert alert.get("keep_firing_for") == ("10m" if about_results else None), name


def test_every_alert_is_seen_firing_and_not_firing() -> None:
    seen: dict[str, set[bool]] = {}
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                seen.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert seen == {alert["alert"]: {True, False} for alert in ALERTS}


def test_rules_and_their_tests_know_only_metrics_that_exist_with_their_labels() -> None:
    labels = {made.name: {"job", *made.labels} for made in all_definitions()}
    labels |= {name: {"job", "source", "target"} for name in GATEWAYS_OWN}
    named = re.compile(
        r"\b(?:compile_breaks_total|compilewatch_\w+|push_(?:failure_)?time_seconds)\b"
    )
    for path in sorted(RULES.glob("*.yml")):
        assert set(named.findall(path.read_text())) <= set(labels)
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for given in test["input_series"]:
                name, _, rest = given["series"].partition("{")
                rest = re.sub(r'"[^"]*"', '""', rest)
                if name != "up":
                    assert set(re.findall(r"(\w+)=", rest)) <= labels[name], given


MAIL = {
    "ALERT_EMAIL_TO": "compilers@example.org",
    "ALERT_EMAIL_FROM": "watch@example.org",
    "ALERT_SMTP_SMARTHOST": "mail.example.org:587",
    "ALERT_SMTP_USERNAME": "watch",
    "ALERT_SMTP_PASSWORD": "it's: a # 'secret'",
}


@pytest.fixture
def alertmanager(tmp_path: Path) -> Path:
    """A copy of its folder: a checkout may have an own.yml."""
    for name in ("alertmanager.yml", "render.sh"):
        (tmp_path / name).write_text((STACK / "alertmanager" / name).read_text())
    return tmp_path


HOOK = "https://example.org/a?b='c&d"


@pytest.mark.parametrize("environment", [{}, {"ALERT_WEBHOOK_URL": HOOK}, MAIL, "both"])
def test_alertmanager_takes_what_the_environment_asks_for(
    alertmanager: Path, environment: dict[str, str] | str
) -> None:
    given = {"ALERT_WEBHOOK_URL": HOOK, **MAIL} if isinstance(environment, str) else environment
    rendered = run("sh", alertmanager / "render.sh", **given)
    config = alertmanager / "rendered.yml"
    config.write_text(rendered.stdout)
    checked = run(
        services.program("amtool", package="prometheus-alertmanager"), "check-config", config
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    receiver = yaml.safe_load(rendered.stdout)["receivers"][0]
    mails, hooks = receiver.get("email_configs", []), receiver.get("webhook_configs", [])
    assert [mail["auth_password"] for mail in mails] == [
        value for name, value in given.items() if name == "ALERT_SMTP_PASSWORD"
    ]
    assert [hook["url"] for hook in hooks] == [
        value for name, value in given.items() if name == "ALERT_WEBHOOK_URL"
    ]


def test_half_a_mail_address_is_rejected_in_one_line_and_own_routes_win(alertmanager: Path) -> None:
    half = run("sh", alertmanager / "render.sh", ALERT_EMAIL_TO="a@example.org")
    assert (half.returncode, half.stdout) == (2, "")
    assert half.stderr.startswith("alertmanager: ALERT_EMAIL_TO is set and ALERT_EMAIL_FROM is not")
    assert half.stderr.count("\n") == 1
    (alertmanager / "own.yml").write_text("route: {receiver: mine}\n")
    own = run("sh", alertmanager / "render.sh", ALERT_EMAIL_TO="a@example.org")
    assert own.stdout == "route: {receiver: mine}\n"


def test_compose_and_script_give_grafana_the_same_quiet_start_and_what_it_reads() -> None:
    environment = COMPOSE["grafana"]["environment"]
    quiet = ("GF_ANALYTICS", "GF_PLUGINS", "GF_NEWS", "GF_SECURITY_DISABLE", "GF_USERS")
    silent = {n: v for n, v in environment.items() if n.startswith(quiet)}
    assert len(silent) >= 8
    assert silent["GF_ANALYTICS_REPORTING_ENABLED"] == "false"
    assert {name for name, value in silent.items() if f"{name}={value}" not in SCRIPT} == set()
    asked = {
        name
        for path in (STACK / "grafana" / "provisioning").rglob("*.yaml")
        for name in re.findall(
            r"\$\{(\w+)\}", re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE)
        )
    }
    assert asked <= set(environment)
    assert {name for name in asked if f'"{name}=' not in SCRIPT} == set()


def test_grafana_is_given_the_uids_that_dashboards_name() -> None:
    folder = STACK / "grafana" / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "datasources.yaml").read_text())
    # Loki has no ruler here and answers 404, which Grafana shows on every list of alerts.
    (logs,) = (s for s in sources["datasources"] if s["uid"] == "loki")
    assert logs["jsonData"]["manageAlerts"] is False
    kinds = {(s["uid"], s["type"], bool(s.get("isDefault"))) for s in sources["datasources"]}
    assert kinds >= {("prometheus", "prometheus", True), ("loki", "loki", False)}
    provider = yaml.safe_load((folder / "dashboards" / "dashboards.yaml").read_text())
    (only,) = provider["providers"]
    assert only["options"] == {"path": "${DASHBOARDS_PATH}", "foldersFromFilesStructure": True}
    # It logs an error at each start for a folder that is missing.
    folders = {path.name for path in folder.iterdir()}
    assert folders >= {"alerting", "dashboards", "datasources", "notifiers", "plugins"}


EXPANDED = [
    STACK / "loki" / "loki.yaml",
    *sorted((STACK / "grafana" / "provisioning").rglob("*.yaml")),
]
"""Files in which a service replaces variables before it parses them: in comments, too."""


def test_what_looks_like_a_variable_is_one() -> None:
    for line in (line for path in EXPANDED for line in path.read_text().splitlines()):
        code, _, comment = line.partition("#")
        assert "${" not in comment, line
        assert code.count("${") == len(re.findall(r"\$\{[A-Z_]+(?::-[^${}]*)?\}", code)), line


def test_loki_keeps_what_it_accepts_and_searches_as_far_back() -> None:
    loki = yaml.safe_load((STACK / "loki" / "loki.yaml").read_text())
    (schema,) = loki["schema_config"]["configs"]
    assert schema["schema"] == "v13", "structured metadata exist from this one on"
    assert loki["compactor"]["retention_enabled"] is True
    # Without this a Loki with retention does not start.
    assert loki["compactor"]["delete_request_store"] == schema["object_store"]
    accepted = loki["limits_config"]["reject_old_samples_max_age"]
    searched = loki["ingester"]["query_store_max_look_back_period"]
    hours = [int(text[:-1]) * {"h": 1, "d": 24}[text[-1]] for text in (accepted, searched)]
    assert hours[1] >= hours[0]
