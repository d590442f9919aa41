#!/usr/bin/env bash
# Makes the secret files of stack/jenkins/compose.yaml that are missing: a random password for the
# administrator; the others are empty, which is "not used". scripts/stack_setup.sh calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets
[ -s secrets/jenkins_admin_password ] ||
  python3 -c 'import secrets; print(secrets.token_urlsafe(24))' >secrets/jenkins_admin_password
touch secrets/notify_smtp_password secrets/notify_webhook
# Compose mounts the files as they are, and the container's user may be another one than here; the
# folder keeps others out.
chmod 700 secrets
chmod 644 secrets/jenkins_admin_password secrets/notify_smtp_password secrets/notify_webhook
