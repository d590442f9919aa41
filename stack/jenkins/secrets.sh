#!/usr/bin/env bash
# Creates the missing secret file of stack/jenkins/compose.yaml: a random password for the
# administrator. scripts/stack_setup.sh calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets
[ -s secrets/jenkins_admin_password ] ||
  python3 -c 'import secrets; print(secrets.token_urlsafe(24))' >secrets/jenkins_admin_password
# Compose mounts the files unchanged, and the container's user may differ from this one; the folder's mode
# protects them.
chmod 700 secrets
chmod 644 secrets/jenkins_admin_password
