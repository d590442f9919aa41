"""The services' configuration, by their own checkers where this machine has them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from compilewatch.sinks.prometheus import all_definitions
from dashboards.frame import TITLES
from tests import services

ROOT = Path(__file__).parents[3]
STACK = ROOT / "stack"
RULES = STACK / "prometheus" / "rules"
RULE_TESTS = sorted((Path(__file__).parent / "rules").glob("*_test.yml"))
GATEWAYS_OWN = ("push_time_seconds", "push_failure_time_seconds")
RESULTS = (
    "CompilewatchRegression",
    "CompilewatchProfileSlower",
    "CompilewatchPassShareFalling",
    "CompilewatchCoverageFalling",
    "CompilewatchUntestableRising",
)
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
    for name, text in [("compose", base), ("plain", base + scrape)]:
        config = tmp_path / f"{name}.yml"
        config.write_text(text)
        checked = promtool("check", "config", "--syntax-only", config)
        assert checked.returncode == 0, checked.stderr
    loaded = yaml.safe_load(base + scrape)
    assert loaded["scrape_configs"][0]["honor_labels"] is True
    labels = loaded["global"]["external_labels"]
    assert labels == {"grafana_url": "https://g.example.org", "runbook_url": "a?b='1&c|d\\e"}
    # They are for the text of alerts, and would otherwise be labels of each.
    (drop,) = loaded["alerting"]["alert_relabel_configs"]
    assert drop["action"] == "labeldrop"
    assert set(drop["regex"].split("|")) == set(labels)


def test_retention_is_in_the_file_where_its_flags_are_deprecated() -> None:
    """Debian's Prometheus does not know this setting, so only its place in the file is checked."""
    tsdb = yaml.safe_load(rendered("--retention", PROMETHEUS_RETENTION="9d"))["storage"]["tsdb"]
    assert tsdb["retention"] == {"time": "9d", "size": "8GB"}
    assert "retention" not in yaml.safe_load(rendered())["storage"]["tsdb"]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["prometheus"]
    (line,) = compose["command"]
    assert "render.sh --retention" in line
    assert "storage.tsdb.retention" not in line


@pytest.mark.parametrize(
    ("version", "given"),
    [("2.42.0+ds", "flags"), ("3.12.1", "flags"), ("3.13.0", "file"), ("4.0.0", "file")],
)
def test_a_prometheus_gets_its_retention_where_it_reads_it(
    tmp_path: Path, version: str, given: str
) -> None:
    fake = tmp_path / "prometheus"
    fake.write_text(f"#!/bin/sh\necho 'prometheus, version {version} (branch: HEAD)'\n")
    fake.chmod(0o755)
    script = (ROOT / "scripts" / "stack.sh").read_text()
    function = re.search(r"^retention_is_in_file\(\) \{.*?^\}", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    asked = f'{function[0]}\nif retention_is_in_file "{fake}"; then echo file; else echo flags; fi'
    assert run("bash", "-c", asked).stdout.strip() == given


def test_the_rules_are_valid() -> None:
    checked = promtool("check", "rules", *sorted(RULES.glob("*.yml")))
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_the_rules_pass_their_unit_tests(path: Path) -> None:
    """Some seconds for days of samples: only Prometheus itself evaluates its rules over time."""
    tested = promtool("test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    wanted = {"summary", "description", "runbook_url", "dashboard_url"}
    assert set(alert["annotations"]) == wanted
    # Absolute where the address is set: a mail has no page that a relative address could refer to.
    page, _, section = alert["annotations"]["runbook_url"].partition("#")
    assert page == (
        "{{ with $externalLabels.runbook_url }}{{ . }}{{ else }}docs/alerts.md{{ end }}"
    )
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert (section, alert["alert"] in headings) == (alert["alert"].lower(), True)
    dashboard = alert["annotations"]["dashboard_url"]
    uid = re.match(r"\{\{ \$externalLabels\.grafana_url \}\}/d/([\w-]+)", dashboard)
    assert uid is not None
    assert uid[1] in TITLES


def test_no_outage_ends_an_alert_about_results() -> None:
    about = {alert["alert"]: alert for alert in ALERTS if alert["alert"] in RESULTS}
    assert set(about) == set(RESULTS)
    for alert in about.values():
        assert alert["keep_firing_for"] == "10m"


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


@pytest.mark.parametrize(
    ("environment", "receives"),
    [
        ({}, set()),
        ({"ALERT_WEBHOOK_URL": "https://example.org/a?b='c&d"}, {"webhook_configs"}),
        (MAIL, {"email_configs"}),
        ({"ALERT_WEBHOOK_URL": "http://127.0.0.1:1/"} | MAIL, {"webhook_configs", "email_configs"}),
    ],
    ids=["nobody", "webhook", "mail", "both"],
)
def test_alertmanager_takes_what_the_environment_asks_for(
    tmp_path: Path, environment: dict[str, str], receives: set[str]
) -> None:
    # A copy: a checkout may have an own.yml.
    for name in ("alertmanager.yml", "render.sh"):
        (tmp_path / name).write_text((STACK / "alertmanager" / name).read_text())
    rendered = run("sh", tmp_path / "render.sh", **environment)
    config = tmp_path / "rendered.yml"
    config.write_text(rendered.stdout)
    checked = run(
        services.program("amtool", package="prometheus-alertmanager"), "check-config", config
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    receiver = yaml.safe_load(rendered.stdout)["receivers"][0]
    assert set(receiver) - {"name"} == receives
    if "email_configs" in receives:
        assert receiver["email_configs"][0]["auth_password"] == MAIL["ALERT_SMTP_PASSWORD"]
    if "webhook_configs" in receives:
        url = receiver["webhook_configs"][0]["url"]
        assert url == environment["ALERT_WEBHOOK_URL"]


def test_half_a_mail_address_is_rejected_in_one_line_and_own_routes_win(tmp_path: Path) -> None:
    for name in ("alertmanager.yml", "render.sh"):
        (tmp_path / name).write_text((STACK / "alertmanager" / name).read_text())
    half = run("sh", tmp_path / "render.sh", ALERT_EMAIL_TO="a@example.org")
    assert (half.returncode, half.stdout) == (2, "")
    assert half.stderr.startswith("alertmanager: ALERT_EMAIL_TO is set and ALERT_EMAIL_FROM is not")
    assert half.stderr.count("\n") == 1
    (tmp_path / "own.yml").write_text("route: {receiver: mine}\n")
    own = run("sh", tmp_path / "render.sh", ALERT_EMAIL_TO="a@example.org")
    assert own.stdout == "route: {receiver: mine}\n"


def test_grafana_calls_nobody_on_the_internet_at_its_start() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    wanted = {
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
        "GF_PLUGINS_PUBLIC_KEY_RETRIEVAL_DISABLED": "true",
        "GF_NEWS_NEWS_FEED_ENABLED": "false",
        "GF_SECURITY_DISABLE_GRAVATAR": "true",
        "GF_USERS_ALLOW_SIGN_UP": "false",
    }
    script = (ROOT / "scripts" / "stack.sh").read_text()
    environment = compose["services"]["grafana"]["environment"]
    assert {name: environment[name] for name in wanted} == wanted
    assert {name for name, value in wanted.items() if f"{name}={value}" not in script} == set()


def test_grafana_is_given_the_uids_that_dashboards_name() -> None:
    folder = STACK / "grafana" / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "datasources.yaml").read_text())
    assert sources["apiVersion"] == 1
    # Loki has no ruler here and answers 404, which Grafana shows on every list of alerts.
    (logs,) = (s for s in sources["datasources"] if s["uid"] == "loki")
    assert logs["jsonData"]["manageAlerts"] is False
    assert {(s["uid"], s["type"]) for s in sources["datasources"]} >= {
        ("prometheus", "prometheus"),
        ("loki", "loki"),
    }
    assert [s["uid"] for s in sources["datasources"] if s.get("isDefault")] == ["prometheus"]
    assert not any(s["editable"] for s in sources["datasources"])
    provider = yaml.safe_load((folder / "dashboards" / "dashboards.yaml").read_text())
    (only,) = provider["providers"]
    assert (only["type"], only["allowUiUpdates"], only["disableDeletion"]) == ("file", False, True)
    assert only["options"] == {"path": "${DASHBOARDS_PATH}", "foldersFromFilesStructure": True}


def test_what_grafanas_provisioning_reads_from_the_environment_is_given_by_compose_and_script() -> (
    None
):
    asked = {
        name
        for path in (STACK / "grafana" / "provisioning").rglob("*.yaml")
        for name in re.findall(
            r"\$\{(\w+)\}", re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE)
        )
    }
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert asked <= set(compose["services"]["grafana"]["environment"])
    script = (ROOT / "scripts" / "stack.sh").read_text()
    assert {name for name in asked if f'"{name}=' not in script} == set()


EXPANDED = [
    STACK / "loki" / "loki.yaml",
    *sorted((STACK / "grafana" / "provisioning").rglob("*.yaml")),
]
"""Files in which a service replaces variables before it parses them: in comments, too."""


@pytest.mark.parametrize("path", EXPANDED, ids=lambda path: path.name)
def test_what_looks_like_a_variable_is_one(path: Path) -> None:
    for line in path.read_text().splitlines():
        code, _, comment = line.partition("#")
        assert "${" not in comment, line
        assert code.count("${") == len(re.findall(r"\$\{[A-Z_]+(?::-[^${}]*)?\}", code)), line


@pytest.fixture(scope="module")
def loki() -> Any:
    return yaml.safe_load((STACK / "loki" / "loki.yaml").read_text())


def test_loki_stores_below_one_folder_and_deletes_what_is_old(loki: Any) -> None:
    storage = loki["storage_config"]
    # Said explicitly: the default of the first changes between Loki 3.7 and the release after it.
    assert storage["use_thanos_objstore"] is True
    assert storage["object_store"]["filesystem"]["dir"] == "${LOKI_DATA:-/loki}/chunks"
    assert loki["common"]["path_prefix"] == "${LOKI_DATA:-/loki}"
    assert "storage" not in loki["common"]
    (schema,) = loki["schema_config"]["configs"]
    # Structured metadata exist from this schema on.
    assert (schema["store"], schema["schema"], schema["index"]["period"]) == ("tsdb", "v13", "24h")
    assert loki["compactor"]["retention_enabled"] is True
    # Without this a Loki with retention does not start.
    assert loki["compactor"]["delete_request_store"] == schema["object_store"]
    assert loki["limits_config"]["max_line_size_truncate"] is True
    assert loki["analytics"]["reporting_enabled"] is False


def test_lines_that_loki_accepts_are_returned_at_once_and_together(loki: Any) -> None:
    accepted, searched = (
        int(text[:-1]) * {"h": 1, "d": 24}[text[-1]]
        for text in (
            loki["limits_config"]["reject_old_samples_max_age"],
            loki["ingester"]["query_store_max_look_back_period"],
        )
    )
    assert searched >= accepted
    # 5,000 lines of up to 256 kB each are rejected above these sizes; real ones are 9 MB.
    for side in ("recv", "send"):
        assert loki["server"][f"grpc_server_max_{side}_msg_size"] >= 64 * 1024 * 1024


def test_grafana_finds_every_folder_that_it_provisions_from() -> None:
    """It logs an error at each start for one that is missing."""
    folders = {path.name for path in (STACK / "grafana" / "provisioning").iterdir()}
    assert folders >= {"alerting", "dashboards", "datasources", "notifiers", "plugins"}
