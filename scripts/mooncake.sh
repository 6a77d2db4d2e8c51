#!/usr/bin/env bash
# Makes a virtual environment with Mooncake's package in TARGET/mooncake, for `glebe lend` in tests
# and benchmarks. pip fetches the package once.
#
# Prints `skipped:` and why, and exits 0, if Python has no venv, pip cannot fetch, or a library that
# the package needs is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mooncake
package=mooncake-transfer-engine-non-cuda==0.3.13.post1
# Mooncake's own tests need it.
pytest=pytest==9.2.0

skip() {
    echo "skipped: Mooncake's package ($1)"
    exit 0
}

usable() {
    "$venv/bin/python3" -c 'import mooncake.store' 2>&1
}

if [ "$(cat "$venv/made-of" 2>/dev/null)" != "$package" ]; then
    # The package has 46 MB, so this looks first for the library that machines rarely have.
    python3 -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2>/dev/null ||
        skip "no libibverbs.so.1; Debian: libibverbs1"
    rm -rf "$venv"
    python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 -m venv fails; Debian: python3-venv"
    "$venv/bin/pip" install -q --no-compile --disable-pip-version-check "$package" "$pytest" ||
        skip "pip cannot fetch $package"
    echo "$package" >"$venv/made-of"
fi
why=$(usable) || skip "${why##*$'\n'}"
