#!/usr/bin/env bash
# Makes the secret files of stack/jenkins/compose.yaml that are missing: a random password for the
# administrator; the others are empty, which is "not used". The user 1000 has to be able to read them.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p secrets
[ -s secrets/jenkins_admin_password ] ||
  python3 -c 'import secrets; print(secrets.token_urlsafe(24))' >secrets/jenkins_admin_password
touch secrets/notify_smtp_password secrets/notify_webhook
chmod 600 secrets/jenkins_admin_password secrets/notify_*
if [ "$(id -u)" = 0 ]; then chown 1000:1000 secrets/jenkins_admin_password secrets/notify_*; fi
