#!/bin/sh
# Shuts this machine down if there was no work on it for IDLE_MINUTES: a safeguard for instances that
# nobody stops. scripts/trainium_agent.sh installs it with a timer that runs it every five minutes. It
# prints one line with its decision, for the journal.
#
# Work is: any process of the agent's user that is not the agent's own plumbing (its sshd session,
# Jenkins' remoting, systemd's user manager); neuronx-cc and compilewatch, whoever runs them (a job of
# the executor is a process of compilewatch; the service that waits for jobs is not work); and an SSH
# session of any other user. An idle Jenkins connection is not work.
#
# IDLE_MINUTES    0 switches it off (default 60)
# IDLE_USER       the agent's user (default jenkins)
# IDLE_LAST       file with the uptime at which work was last seen (/run/compilewatch-idle: /run
#                 is empty after each boot, and uptime does not jump as the clock does)
# For tests: IDLE_PS and IDLE_UPTIME are commands that replace ps and reading /proc/uptime,
# IDLE_SHUTDOWN replaces `shutdown -h now`.
set -u

minutes=${IDLE_MINUTES:-60}
user=${IDLE_USER:-jenkins}
last=${IDLE_LAST:-/run/compilewatch-idle}

case $minutes in
'' | *[!0-9]*)
  echo "IDLE_MINUTES is not an integer: $minutes" >&2
  exit 2
  ;;
esac
if [ "$minutes" -eq 0 ]; then
  echo "switched off (IDLE_MINUTES=0)"
  exit 0
fi

# Unknown is not idle: if the processes cannot be listed, the machine keeps running and an error is printed.
processes=$(${IDLE_PS:-ps -eo user:64=,args=}) && [ -n "$processes" ] || {
  echo "ps failed: it is unknown whether this machine is idle" >&2
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
    # "NAME [priv]", "[accepted]" and "/usr/sbin/sshd -D [listener]" are not sessions.
    if (name ~ /@/ && name !~ ("^" user "@notty")) { print line; exit }
    next
  }
  line ~ /compilewatch executor serve/ { next }
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
