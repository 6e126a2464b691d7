#!/usr/bin/env bash
# Builds Helm from its Go module into FOLDER/helm, for a machine that has Go and no Helm: tests/deploy/test_chart.py runs it.
# Usage: PATH=$(tests/deploy/helm.sh FOLDER):$PATH. Takes some minutes once; prints the folder.
set -euo pipefail
FOLDER=$(readlink -m "$1")
HELM=v4.3.1

[ -x "$FOLDER/helm" ] && { echo "$FOLDER"; exit; }
command -v go >/dev/null || { echo "helm: left out: no go, which builds it from its module" >&2; exit 75; }
mkdir -p "$FOLDER"
# `go install MODULE@VERSION` takes no version for what `helm version` prints.
source=$(cd "$FOLDER" && go mod download -json "helm.sh/helm/v4@$HELM" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
(cd "$source" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath \
  -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$HELM" -o "$FOLDER/helm" ./cmd/helm) >&2
echo "$FOLDER"
