#!/bin/sh
# First start: creates the pair of keys with which the controller reaches its agents. Existing keys are kept.
# The private half goes to /private (the controller's volume only), the public one to /public.
set -eu
if [ ! -f /private/agents ]; then
  ssh-keygen -q -t ed25519 -N '' -C compilewatch -f /private/agents
fi
cp /private/agents.pub /public/authorized_keys
chown -R 1000:1000 /private /public
chmod 700 /private /public
chmod 600 /private/agents /public/authorized_keys
