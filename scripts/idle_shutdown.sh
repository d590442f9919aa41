#!/bin/sh
# Shuts this machine down when nothing has worked on it for IDLE_MINUTES: the last resort against an
# instance that nobody stops. scripts/trainium_agent.sh installs it, with a timer that runs it every
# five minutes. It says in one line what it found, for the journal.
#
# Work is: any process of the agent's user that is not the agent's own plumbing (its sshd session,
# Jenkins' remoting, systemd's user manager); neuronx-cc and compilewatch, whoever runs them; and an
# SSH session of any other user. A Jenkins that stays connected and asks for nothing is not work.
#
# IDLE_MINUTES    0 switches it off (default 60)
# IDLE_USER       the agent's user (default jenkins)
# IDLE_LAST       where the uptime at which work was last seen is kept (/run/compilewatch-idle: /run
#                 is empty after each boot, and uptime does not jump as the clock does)
# For tests: IDLE_PS and IDLE_UPTIME, commands in place of ps and reading /proc/uptime, and
# IDLE_SHUTDOWN, in place of `shutdown -h now`.
set -u

minutes=${IDLE_MINUTES:-60}
user=${IDLE_USER:-jenkins}
last=${IDLE_LAST:-/run/compilewatch-idle}

case $minutes in
'' | *[!0-9]*)
  echo "IDLE_MINUTES is no whole number: $minutes" >&2
  exit 2
  ;;
esac
if [ "$minutes" -eq 0 ]; then
  echo "switched off (IDLE_MINUTES=0)"
  exit 0
fi

# Not to know is not to be idle: a machine that cannot be looked at is left running, loudly.
processes=$(${IDLE_PS:-ps -eo user:64=,args=}) && [ -n "$processes" ] || {
  echo "ps failed: cannot tell whether anything works here" >&2
  exit 1
}
uptime=$(${IDLE_UPTIME:-cut -d. -f1 /proc/uptime}) || exit 1

# The first process that is work, or nothing. Patterns are those of OpenSSH ("sshd: NAME@pts/0",
# since 9.8 "sshd-session: NAME@notty"), ssh-slaves ("... java -jar remoting.jar ...") and systemd.
work=$(printf '%s\n' "$processes" | awk -v user="$user" '
  {
    owner = $1
    line = $0
    sub(/^[^ ]+ +/, "", line)
  }
  line ~ /^sshd(-session)?: / {
    name = line
    sub(/^sshd(-session)?: /, "", name)
    # "NAME [priv]", "[accepted]" and "/usr/sbin/sshd -D [listener]" are no sessions.
    if (name ~ /@/ && name !~ ("^" user "@notty")) { print line; exit }
    next
  }
  line ~ /neuronx-cc/ { print line; exit }
  line ~ /(^|[ \/])compilewatch([ .]|$)/ && line !~ /remoting\.jar/ { print line; exit }
  owner == user && line !~ /remoting\.jar/ && line !~ /^(\/[^ ]*\/)?systemd --user/ &&
    line !~ /^\(sd-pam\)/ && line !~ /^(\/[^ ]*\/)?(sftp-server|dbus-daemon|sshd(-session)?)/ {
    print line; exit
  }
')

if [ -n "$work" ]; then
  echo "$uptime" >"$last" || exit 1
  echo "at work: $(printf '%.120s' "$work")"
  exit 0
fi
seen=$(cat "$last" 2>/dev/null)
case $seen in
'' | *[!0-9]*) seen=0 ;; # nothing since the boot
esac
idle=$(((uptime - seen) / 60))
if [ "$idle" -lt "$minutes" ]; then
  echo "idle for $idle of $minutes minutes"
  exit 0
fi
echo "idle for $idle minutes: shutting down"
${IDLE_SHUTDOWN:-shutdown -h now}
