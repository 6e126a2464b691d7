#!/usr/bin/env bash
# Starts a Docker engine for `make compose-test` on a machine that has none and reaches no image registry, as CI's: Debian
# 12, root, Go. Images come from package registries instead, under the names that docker-compose.yml and deploy/Dockerfile
# have. Usage: start.sh FOLDER, in a clone in which `make setup` has run. Prints, on standard output, what to export.
# Exit code 75: this machine cannot do it; standard error says why.
set -euo pipefail
cd "$(dirname "$0")/../../.."
FOLDER=$(readlink -m "$1")
HERE=tests/deploy/engine
PY=.venv/bin/python
COMPOSE=v2.40.3
BUILDX=v0.29.1

step() { echo "engine: $(date +%T) $*" >&2; }
cannot() { echo "engine: left out: $*" >&2; exit 75; }

[ "$(id -u)" = 0 ] || cannot "not root"
[ -e /etc/debian_version ] || cannot "not Debian, whose packages the images are made of"
command -v go >/dev/null || cannot "no go, which builds Compose and buildx from their modules"

mkdir -p "$FOLDER"
# A socket of its own: tests that look for an engine, and use the embedded broker where there is none, do not see it.
export DOCKER_HOST=unix://$FOLDER/docker.sock DOCKER_CONFIG=$FOLDER/cli

if ! command -v dockerd >/dev/null || ! command -v debootstrap >/dev/null; then
  step "Debian's packages"
  { apt-get update -qq && apt-get install -y -qq docker.io cgroupfs-mount debootstrap; } >"$FOLDER/apt.log" 2>&1 \
    || cannot "the packages docker.io and debootstrap cannot be installed: $FOLDER/apt.log"
fi
if ! docker info >/dev/null 2>&1; then
  step "engine"
  mountpoint -q /sys/fs/cgroup || cgroupfs-mount
  nohup dockerd --host "$DOCKER_HOST" --data-root "$FOLDER/data" --exec-root "$FOLDER/exec" --pidfile "$FOLDER/pid" \
    >"$FOLDER/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do docker info >/dev/null 2>&1 && break; sleep 0.2; done
  docker info >/dev/null 2>&1 || cannot "dockerd does not start here: $FOLDER/dockerd.log"
fi

# `go install MODULE@VERSION` refuses modules with `exclude` or `replace`, so that they are built where they are unpacked.
plugin() { # name module version package variable
  [ -x "$DOCKER_CONFIG/cli-plugins/$1" ] && return
  step "$1 $3"
  local source
  source=$(cd "$FOLDER" && GOFLAGS=-mod=mod go mod download -json "$2@$3" | "$OLDPWD/$PY" -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
  rm -rf "$FOLDER/source" && cp -r "$source" "$FOLDER/source" && chmod -R u+w "$FOLDER/source"
  (cd "$FOLDER/source" && CGO_ENABLED=0 GOFLAGS=-mod=mod go build -trimpath -ldflags "-s -w -X $5=$3" \
    -o "$DOCKER_CONFIG/cli-plugins/$1" "$4")
  rm -rf "$FOLDER/source"
}
mkdir -p "$DOCKER_CONFIG/cli-plugins"
{
  plugin docker-compose github.com/docker/compose/v2 $COMPOSE ./cmd github.com/docker/compose/v2/internal.Version
  plugin docker-buildx github.com/docker/buildx $BUILDX ./cmd/buildx github.com/docker/buildx/version.Version
} >"$FOLDER/go.log" 2>&1 || cannot "Compose or buildx cannot be built: $FOLDER/go.log"

has() { docker image inspect "$1" >/dev/null 2>&1; }
image_of() { sed -n "s#^ *image: \($1.*\)#\1#p" docker-compose.yml; }

if ! has debian:bookworm-slim; then
  step "debian:bookworm-slim"
  # The mirror that this machine itself uses.
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?$' | sed -n 1p || true)
  [ -n "$mirror" ] || cannot "no mirror of Debian in /etc/apt"
  root=$FOLDER/root
  debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "$mirror" >"$FOLDER/debootstrap.log" 2>&1 \
    || cannot "debootstrap failed: $FOLDER/debootstrap.log"
  # Certificates that this machine trusts beside Debian's, such as a proxy's.
  cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
  chroot "$root" update-ca-certificates >/dev/null 2>&1
  printf "deb $mirror %s main\n" bookworm bookworm-updates >"$root/etc/apt/sources.list"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/etc/{resolv.conf,hostname}
  tar -C "$root" -c . | docker import --change 'CMD ["bash"]' - debian:bookworm-slim >/dev/null
  rm -rf "$root"
fi

build() { # image folder
  has "$1" && return
  step "$1"
  docker build --quiet --tag "$1" --file "$HERE/$2.Dockerfile" "$FOLDER/context" >"$FOLDER/build.log" 2>&1 \
    || cannot "$1 cannot be built: $FOLDER/build.log"
}
make --no-print-directory .venv/.lockkeeper-tools-test >&2 # the tests know where the registry's archive is
rm -rf "$FOLDER/context" && mkdir -p "$FOLDER/context/libs"
cp "$HERE"/kafka.sh "$HERE"/log4j2.yaml "$FOLDER/context/"
# The jars that the embedded broker runs; kafka.docker.KafkaDockerWrapper, the entry point of Kafka's image, is in them.
$PY -c 'from streaming.runtime.jars import classpath; print(*classpath("broker"), sep="\n")' | xargs -I{} cp {} "$FOLDER/context/libs/"
cp "$($PY -c 'from tests.contracts.apicurio import archive; print(archive())')" "$FOLDER/context/registry.tar.gz"
echo '{"database": "ok"}' >"$FOLDER/context/health"
build "$(sed -n 's/^FROM \([^ ]*\) AS base$/\1/p' deploy/Dockerfile)" python
build "$(image_of apache/kafka)" kafka
build "$(image_of apicurio)" registry
build "$(image_of prom/)" prometheus
build "$(image_of grafana/)" grafana
rm -rf "$FOLDER/context"
step "ready"
echo "export DOCKER_HOST=$DOCKER_HOST DOCKER_CONFIG=$DOCKER_CONFIG"
