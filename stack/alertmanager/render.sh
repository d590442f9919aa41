#!/bin/sh
# Prints Alertmanager's configuration: own.yml if it exists, else alertmanager.yml with the recipients
# from the environment, which Alertmanager itself does not read. Runs in the image's busybox too.
#
# ALERT_WEBHOOK_URL      gets a POST of every notification (Alertmanager's webhook JSON)
# ALERT_EMAIL_TO         gets an e-mail; needs ALERT_EMAIL_FROM and ALERT_SMTP_SMARTHOST (host:port)
# ALERT_SMTP_USERNAME, ALERT_SMTP_PASSWORD   if the mail server requires them
# ALERT_SMTP_REQUIRE_TLS   false for a mail server without STARTTLS
set -eu
folder=$(dirname "$0")

if [ -f "$folder/own.yml" ]; then
  cat "$folder/own.yml"
  exit
fi

if [ -n "${ALERT_EMAIL_TO:-}" ]; then
  for name in ALERT_EMAIL_FROM ALERT_SMTP_SMARTHOST; do
    eval "value=\${$name:-}"
    if [ -z "$value" ]; then
      echo "alertmanager: ALERT_EMAIL_TO is set and $name is not: set it, or unset ALERT_EMAIL_TO" >&2
      exit 2
    fi
  done
fi

# A YAML string in single quotes, in which only the quote itself is special.
quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/''/g")"; }

cat "$folder/alertmanager.yml"
if [ -n "${ALERT_WEBHOOK_URL:-}" ]; then
  printf '    webhook_configs:\n'
  printf '      - url: %s\n' "$(quoted "$ALERT_WEBHOOK_URL")"
fi
if [ -n "${ALERT_EMAIL_TO:-}" ]; then
  printf '    email_configs:\n'
  printf '      - to: %s\n' "$(quoted "$ALERT_EMAIL_TO")"
  printf '        from: %s\n' "$(quoted "$ALERT_EMAIL_FROM")"
  printf '        smarthost: %s\n' "$(quoted "$ALERT_SMTP_SMARTHOST")"
  printf '        require_tls: %s\n' "${ALERT_SMTP_REQUIRE_TLS:-true}"
  printf '        send_resolved: true\n'
  if [ -n "${ALERT_SMTP_USERNAME:-}" ]; then
    printf '        auth_username: %s\n' "$(quoted "$ALERT_SMTP_USERNAME")"
    printf '        auth_password: %s\n' "$(quoted "${ALERT_SMTP_PASSWORD:-}")"
  fi
fi
