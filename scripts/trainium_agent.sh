#!/usr/bin/env bash
# Turns a fresh Neuron instance into an agent of Jenkins. The instance is what scripts/trainium_create.sh
# creates: a trn2.3xlarge with AWS's image of TorchNeuron (Ubuntu), or with --sdk xla a trn1.2xlarge with the
# Neuron base image.
#
#   sudo scripts/trainium_agent.sh --key 'ssh-ed25519 AAAA... jenkins' [--sdk native|xla] [--user NAME]
#        [--idle-minutes N] [--source URL] [--executor-port N] [--dry-run]
#
# Installs drivers and tools of the Neuron SDK, unless they are installed; Java for the Jenkins agent; an
# unprivileged user who can log in with that key only; a checkout of compilewatch with its environment
# `neuron` (with --sdk xla `neuron-xla`); a timer that shuts the instance down when it is idle. When run
# again, it changes only what differs. In Jenkins, add a node with the label `trainium`, launched by SSH as
# that user, with the folder that this script prints.
#
#   --key TEXT|FILE     the public key of the controller (required)
#   --sdk NAME          native: TorchNeuron, on Trn2 and Trn3 (default); xla: PyTorch/XLA, on Trn1 and Inf2
#   --user NAME         the agent's user (jenkins, as in stack/jenkins)
#   --idle-minutes N    shut down after this many minutes without work; 0: never (60)
#   --source URL        where compilewatch is cloned from (the checkout that contains this script)
#   --executor-port N   also install the executor (docs/executor.md) as a unit that listens on this port, with
#                       a token and a certificate of its own, and what its sandbox needs
#   --dry-run           print the steps without running them; needs neither root nor an instance
#
# TORCH_INDEX, an index of CPU builds of torch, is passed to scripts/setup.sh.
# ROOT, a folder, is the prefix of every file that is written: for tests.
# NOT YET RUN ON AN INSTANCE: docs/trainium.md. After it: scripts/verify_neuron.sh verifies the SDK.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
root=${ROOT:-}
user=jenkins key='' sdk=native minutes=60 source=$here dry='' executor_port=''
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
neuron_repository=https://apt.repos.neuron.amazonaws.com

die() {
  echo "trainium_agent.sh: $*" >&2
  exit 2
}

value() { # OPTION COUNT: checks that an option has its value
  [ "$2" -ge 2 ] || die "$1 needs a value"
}

while [ $# -gt 0 ]; do
  case $1 in
  --dry-run) dry=yes ;;
  --key) value "$1" $# && key=$2 && shift ;;
  --sdk) value "$1" $# && sdk=$2 && shift ;;
  --user) value "$1" $# && user=$2 && shift ;;
  --idle-minutes) value "$1" $# && minutes=$2 && shift ;;
  --source) value "$1" $# && source=$2 && shift ;;
  --executor-port) value "$1" $# && executor_port=$2 && shift ;;
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
  *) die "unknown option $1; see --help" ;;
  esac
  shift
done

check() {
  if [ -n "$key" ] && [ -f "$key" ]; then key=$(cat "$key"); fi
  [ -n "$key" ] || die "name the controller's public key with --key"
  # One line that begins with a type: a private key, or options before it, is a mistake.
  [[ $key =~ ^(ssh|ecdsa|sk)-[a-z0-9@.-]+\ [A-Za-z0-9+/=]+(\ [[:print:]]*)?$ ]] ||
    die "--key is not a public SSH key of one line"
  [[ $user =~ ^[a-z][a-z0-9_-]{0,31}$ ]] || die "--user: $user is not a valid user name"
  case $sdk in
  native) environment=neuron ;;
  xla) environment=neuron-xla ;;
  *) die "--sdk: $sdk is neither native (TorchNeuron) nor xla" ;;
  esac
  [ "$user" != root ] || die "--user: the agent runs without privileges"
  [[ -z $executor_port || $executor_port =~ ^[1-9][0-9]{3,4}$ ]] ||
    die "--executor-port: $executor_port is not a port above 1023"
  [[ $minutes =~ ^[0-9]+$ ]] || die "--idle-minutes: $minutes is not an integer"
  # shellcheck source=/dev/null
  if [ -r "$root/etc/os-release" ]; then . "$root/etc/os-release"; fi
  [ -n "$dry" ] || [ "${ID:-}" = ubuntu ] || die "needs Ubuntu, not ${PRETTY_NAME:-this}"
  [ -n "$dry" ] || [ "$(id -u)" = 0 ] || die "needs root: sudo $0 ..."
}

step() { echo "== $*"; }

run() { # COMMAND...: runs it, or prints it
  if [ -n "$dry" ]; then
    printf '+'
    printf ' %q' "$@"
    echo
  else
    "$@"
  fi
}

# Files in the user's home are written as the user: root would follow a link placed there.
as_user() { # COMMAND...: in the user's home, without root's environment
  run runuser -u "$user" -- env -i -C "$home" HOME="$home" USER="$user" LANG=C.UTF-8 \
    PATH=/opt/aws/neuron/bin:/usr/bin:/bin TORCH_INDEX="$torch_index" "$@"
}

file() { # MODE PATH < TEXT: writes the file if it differs
  local path=$root$2 text
  text=$(cat)
  if [ -f "$path" ] && [ "$text" = "$(cat "$path")" ]; then
    echo "$2 is up to date"
  elif [ -n "$dry" ]; then
    echo "+ write $2 (mode $1):"
    printf '%s\n' "$text" | sed -n '1,12s/^/    /p;13s/.*/    .../p'
  else
    echo "writing $2"
    mkdir -p "$(dirname "$path")"
    printf '%s\n' "$text" >"$path.new"
    chmod "$1" "$path.new"
    mv "$path.new" "$path"
  fi
}

packages() {
  step "packages"
  # Jenkins 2.555 and later need Java 21 on agents too.
  local wanted=(git openjdk-21-jre-headless python3-venv) missing=() name
  if [ -n "$executor_port" ]; then
    wanted+=(bubblewrap libseccomp2 apparmor-profiles openssl)
  fi
  if [ ! -x "$root/opt/aws/neuron/bin/neuron-ls" ]; then
    # As AWS documents it; a Neuron DLAMI already has all this.
    if [ ! -s "$root/etc/apt/keyrings/neuron.gpg" ]; then
      run mkdir -p "$root/etc/apt/keyrings"
      run bash -c "set -o pipefail; wget -qO - $neuron_repository/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB |
        gpg --batch --yes --dearmor -o $root/etc/apt/keyrings/neuron.gpg"
    fi
    file 644 /etc/apt/sources.list.d/neuron.list \
      <<<"deb [signed-by=/etc/apt/keyrings/neuron.gpg] $neuron_repository ${VERSION_CODENAME:-noble} main"
    wanted+=("linux-headers-$(uname -r)" aws-neuronx-dkms aws-neuronx-runtime-lib aws-neuronx-tools)
  fi
  for name in "${wanted[@]}"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' ||
      missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "everything is installed"
    return
  fi
  run apt-get update -q
  run env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    "${missing[@]}"
}

account() {
  step "user $user, without privileges"
  if id "$user" >/dev/null 2>&1; then
    echo "the user exists"
  else
    # No password matches this entry: login is by key only.
    run useradd --create-home --home-dir "/home/$user" --shell /bin/bash --password '*' "$user"
  fi
  local group
  for group in $(id -nG "$user" 2>/dev/null); do
    case $group in
    sudo | admin | wheel | docker | lxd | adm | disk)
      die "$user is in the privileged group $group: choose another --user"
      ;;
    esac
  done
  # No terminal, no forwarding: the agent only runs commands and copies files.
  # shellcheck disable=SC2016 # The inner shell expands it.
  as_user sh -c 'umask 077 && mkdir -p .ssh agent && printf "%s\n" "$1" >.ssh/authorized_keys' \
    sh "restrict $key"
}

worker() {
  step "compilewatch and its environment $environment"
  local origin=$source
  if [ -d "$source" ]; then
    # The user may not be able to read it: root copies it as a bundle.
    origin=$home/compilewatch.bundle
    if [ -n "$dry" ]; then
      echo "+ bundle $source into $origin"
    else
      git -C "$source" bundle create -q - HEAD | as_user sh -c 'cat >compilewatch.bundle'
    fi
  fi
  as_user git init -q compilewatch
  as_user git -C compilewatch fetch -q "$origin" HEAD
  as_user git -C compilewatch reset -q --hard FETCH_HEAD
  as_user compilewatch/scripts/setup.sh
  # In the user's cache, where every checkout of a build finds it. Which one is there tells the stage
  # Neuron the SDK.
  as_user compilewatch/.venv/bin/compilewatch env create "$environment"
}

executor() {
  step "the executor on port $executor_port"
  # Ubuntu 24.04 denies user namespaces to programs without a profile.
  local profile=/etc/apparmor.d/bwrap-userns-restrict place=/etc/compilewatch
  if [ ! -e "$root$profile" ]; then
    run mkdir -p "$root/etc/apparmor.d"
    run install -m644 "$root/usr/share/apparmor/extra-profiles/bwrap-userns-restrict" "$root$profile"
    run apparmor_parser -r "$root$profile"
  fi
  run mkdir -p -m 755 "$root$place"
  if [ ! -s "$root$place/executor.token" ]; then
    run sh -c "umask 077 && openssl rand -hex 32 >$root$place/executor.token"
  fi
  if [ ! -s "$root$place/executor.key" ]; then
    run sh -c "umask 077 && openssl req -x509 -newkey rsa:3072 -nodes -days 3650 \
      -subj /CN=compilewatch-executor -addext subjectAltName=DNS:$(hostname),DNS:localhost,IP:127.0.0.1 \
      -keyout $root$place/executor.key -out $root$place/executor.crt 2>/dev/null"
  fi
  # systemd hands the secrets over, so that only root can read their files.
  file 644 /etc/systemd/system/compilewatch-executor.service <<EOF
[Unit]
Description=Executor of compilewatch: runs submitted code in sandboxes
After=network-online.target
Wants=network-online.target

[Service]
User=$user
StateDirectory=compilewatch-executor
StateDirectoryMode=0700
WorkingDirectory=/home/$user/compilewatch
LoadCredential=token:$place/executor.token
LoadCredential=certificate:$place/executor.crt
LoadCredential=key:$place/executor.key
ExecStart=/home/$user/compilewatch/.venv/bin/compilewatch executor serve --host 0.0.0.0 --port $executor_port --environment $environment --state /var/lib/compilewatch-executor --token-file %d/token --certificate %d/certificate --key %d/key
# Neither the service nor a job needs the credentials of the instance.
IPAddressDeny=169.254.169.254
NoNewPrivileges=yes
KillMode=mixed
TimeoutStopSec=60
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
EOF
  run systemctl daemon-reload
  run systemctl enable compilewatch-executor.service
  run systemctl restart compilewatch-executor.service
}

idle() {
  step "shut down after $minutes minutes without work"
  file 755 /usr/local/sbin/compilewatch-idle <"$here/scripts/idle_shutdown.sh"
  file 644 /etc/systemd/system/compilewatch-idle.service <<EOF
[Unit]
Description=Shut down if nothing has worked here for $minutes minutes

[Service]
Type=oneshot
Environment=IDLE_MINUTES=$minutes IDLE_USER=$user
ExecStart=/usr/local/sbin/compilewatch-idle
EOF
  file 644 /etc/systemd/system/compilewatch-idle.timer <<'EOF'
[Unit]
Description=Look every five minutes whether this instance idles

[Timer]
OnBootSec=5min
OnUnitActiveSec=5min

[Install]
WantedBy=timers.target
EOF
  run systemctl daemon-reload
  run systemctl enable --now compilewatch-idle.timer
}

check
home=$root/home/$user
packages
account
worker
if [ -n "$executor_port" ]; then executor; fi
idle
step "done"
cat <<EOF
In Jenkins: a permanent agent with the label trainium, launched by SSH as $user, remote root
directory /home/$user/agent. Before that, on this machine, as $user:
  cd ~/compilewatch && scripts/verify_neuron.sh
The instance must stop, not terminate, when it shuts itself down (EC2's default):
docs/trainium.md explains how to check that.
EOF
if [ -n "$executor_port" ]; then
  cat <<EOF
Clients of the executor: TRAINIUM_ENDPOINT=https://$(hostname):$executor_port, the token in
/etc/compilewatch/executor.token and the certificate in /etc/compilewatch/executor.crt. Open the port
for the controller only.
EOF
fi
