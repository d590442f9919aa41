# syntax=docker/dockerfile:1
# docker build --target controller . : Jenkins, configured as code
# docker build --target agent .      : the agent that runs sweeps

FROM jenkins/jenkins:2.568.2-lts-jdk21 AS controller
COPY stack/jenkins/plugins.txt /usr/share/jenkins/ref/plugins.txt
RUN jenkins-plugin-cli --plugin-file /usr/share/jenkins/ref/plugins.txt
COPY stack/jenkins/casc.yaml stack/jenkins/jobs.groovy /usr/share/compilewatch/
ENV CASC_JENKINS_CONFIG=/usr/share/compilewatch/casc.yaml \
    JAVA_OPTS="-Djenkins.install.runSetupWizard=false -Dorg.jenkinsci.plugins.durabletask.BourneShellScript.HEARTBEAT_CHECK_INTERVAL=60"
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=6 \
    CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8080/login"]

# The locked packages, so that the set-up of a checkout needs no network. Cached until a lock changes.
FROM jenkins/ssh-agent:8.9.0-jdk21 AS base
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        bubblewrap ca-certificates g++ git libseccomp2 make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM base AS wheels
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /wheels
COPY requirements/default.txt ./
RUN python3 -m venv /tmp/venv \
    && /tmp/venv/bin/pip download --no-cache-dir --no-deps --index-url "$TORCH_INDEX" \
        "$(grep '^torch==' default.txt)" \
    && /tmp/venv/bin/pip download --no-cache-dir --find-links . -r default.txt "setuptools>=77" \
    && rm default.txt

# sshd runs as root and starts each session as the user jenkins, who has no other rights.
FROM base AS agent
COPY --from=wheels /wheels /opt/wheels
RUN printf '[global]\nfind-links = /opt/wheels\n' >/etc/pip.conf \
    && install -d -o jenkins -g jenkins /home/jenkins/agent /home/jenkins/.aws /home/jenkins/.cache \
        /var/lib/compilewatch/outputs
VOLUME ["/home/jenkins/agent", "/home/jenkins/.aws", "/home/jenkins/.cache", "/var/lib/compilewatch/outputs"]
HEALTHCHECK --interval=10s --timeout=5s --retries=6 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/22"]
