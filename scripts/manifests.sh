#!/usr/bin/env bash
# Checks the manifests in containers/ against the schemas of Kubernetes, in an environment under the
# target folder. Prints `skipped:` and why, and exits 0, without Python's venv or pip's packages.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(realpath -m "${CARGO_TARGET_DIR:-target}")/manifests
if ! "$venv/bin/kubernetes-validate" --version >/dev/null 2>&1; then
    rm -rf "$venv"
    if ! python3 -m venv "$venv" >/dev/null 2>&1 || ! "$venv/bin/pip" install -q \
        --disable-pip-version-check --no-compile kubernetes-validate==1.34.1 pyyaml >/dev/null 2>&1; then
        echo "skipped: the manifests (pip cannot fetch kubernetes-validate)"
        exit 0
    fi
fi
"$venv/bin/kubernetes-validate" --strict containers/*.yaml
# A check that accepts everything would be of no use.
wrong=$venv/wrong.yaml
sed 's/hostPath:/hostPaths:/' containers/postgres.yaml >"$wrong"
if "$venv/bin/kubernetes-validate" --strict "$wrong" >/dev/null 2>&1; then
    echo "error: a wrong manifest was accepted" >&2
    exit 1
fi
