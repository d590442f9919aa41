"""Notifies people of regressions, of recoveries, and of a monitor that failed.

    RESULT=SUCCESS python scripts/notify.py build

Called at the end of a pipeline with the folder that its stages share. Sends nothing if nothing has
changed: a regression is reported once, and again when it is fixed. Open regressions are stored in
`notified.json` of that folder; without it, only recoveries are missed.

RESULT                how the build ended: SUCCESS, UNSTABLE, FAILURE or ABORTED
BUILD_URL             the address of the build; Jenkins sets it
NOTIFY_WEBHOOK        a URL that takes {"text": …} by POST, such as an incoming webhook of a chat
NOTIFY_MAIL_TO        A,B: recipients of an e-mail
NOTIFY_MAIL_FROM      its sender (compilewatch@localhost)
NOTIFY_SMTP           host:port of the mail server (localhost:25)
NOTIFY_SMTP_USER      user name for the login, with STARTTLS; empty: no login
NOTIFY_SMTP_PASSWORD  that user's password

Exit status 2, with one line, if a message could not be delivered; the next build tries again.
"""

from __future__ import annotations

import json
import os
import smtplib
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path

import msgspec

from compilewatch.contract.targets import target_label
from compilewatch.records import Change, ChangeKind

TIMEOUT_SECONDS = 30.0
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class State:
    """What was reported and still holds: regressions by `model [target]`, and a failure."""

    open: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def read_state(path: Path) -> State:
    """The state of the last build; an empty one if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return State(open=dict(found["open"]), failed=bool(found["failed"]))
    except (OSError, ValueError, KeyError, TypeError):
        return State()


def changes_of(folder: Path) -> list[Change]:
    """All changes that the stage Compare found. A file that it could not finish holds none."""
    found: list[Change] = []
    for path in sorted((folder / "compare").glob("*.json")):
        try:
            report = json.loads(path.read_bytes())
        except ValueError:
            continue
        found += msgspec.convert(report["changes"], list[Change])
    return found


def after(state: State, changes: Iterable[Change], result: str) -> tuple[State, str]:
    """The state after a build and the text to send, empty if there is nothing to report."""
    still = dict(state.open)
    worse: list[str] = []
    better: list[str] = []
    for change in changes:
        name = f"{change.model} [{target_label(change.target)}]"
        if change.kind is ChangeKind.REGRESSION and name not in still:
            worse.append(f"{name}: {change.reason}")
            still[name] = change.reason
        elif change.kind is ChangeKind.FIXED and name in still:
            better.append(name)
            del still[name]
        elif change.kind is ChangeKind.GONE:
            still.pop(name, None)
    # An aborted build says nothing about the monitor.
    failed = state.failed if result == "ABORTED" else result == "FAILURE"
    parts = []
    if worse:
        parts.append(section(f"new regressions: {len(worse)}", worse))
    if better:
        parts.append(section(f"recovered: {len(better)}", better))
    if failed and not state.failed:
        parts.append("the monitor failed: the build's log says at which stage")
    if state.failed and not failed:
        parts.append("the monitor works again")
    return State(open=still, failed=failed), "\n\n".join(parts)


def section(title: str, lines: list[str]) -> str:
    """A title and its lines, of which many are cut."""
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n".join([title, *(f"  {line}" for line in lines[:SHOWN]), *more])


def send(text: str, environ: Mapping[str, str]) -> list[str]:
    """Deliver by every configured way; returns one line for each failure."""
    problems = []
    if url := environ.get("NOTIFY_WEBHOOK"):
        try:
            post(url, text)
        except (OSError, ValueError) as error:
            # Not the URL: whoever knows it can post.
            reason = getattr(error, "reason", None) or type(error).__name__
            problems.append(f"the webhook did not take it ({reason}): check NOTIFY_WEBHOOK")
    if people := environ.get("NOTIFY_MAIL_TO"):
        try:
            mail(people, text, environ)
        except (OSError, ValueError, smtplib.SMTPException) as error:
            server = environ.get("NOTIFY_SMTP") or "localhost:25"
            problems.append(f"{server} did not take the mail ({error}): check NOTIFY_SMTP…")
    return problems


def post(url: str, text: str) -> None:
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
        pass


def mail(people: str, text: str, environ: Mapping[str, str]) -> None:
    message = EmailMessage()
    message["Subject"] = "compilewatch: " + text.splitlines()[0]
    message["From"] = environ.get("NOTIFY_MAIL_FROM") or "compilewatch@localhost"
    message["To"] = people
    message.set_content(text)
    host, _, port = (environ.get("NOTIFY_SMTP") or "localhost:25").partition(":")
    with smtplib.SMTP(host, int(port or 25), timeout=TIMEOUT_SECONDS) as server:
        if user := environ.get("NOTIFY_SMTP_USER"):
            server.starttls()
            server.login(user, environ.get("NOTIFY_SMTP_PASSWORD", ""))
        server.send_message(message)


def main() -> int:
    folder = Path(sys.argv[1])
    path = folder / "notified.json"
    state, text = after(read_state(path), changes_of(folder), os.environ.get("RESULT", "SUCCESS"))
    if text:
        if url := os.environ.get("BUILD_URL"):
            text += f"\n\n{url}"
        print(text)
        if problems := send(text, os.environ):
            print(f"notify: {'; '.join(problems)}", file=sys.stderr)
            return 2
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"open": state.open, "failed": state.failed}), encoding="utf-8")
    fresh.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
