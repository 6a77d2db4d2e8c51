#!/usr/bin/env bash
# The wheel of glebe for Python, in a virtual environment that this makes under the target folder.
#
# Usage: python.sh test     builds a wheel like the library's tests, installs it, runs its tests
#        python.sh wheel    builds the wheel that users install, in TARGET/wheels, and tests its form
# Prints `skipped:` and why, and exits 0, where Python is too old, has no venv, or pip cannot fetch.
set -euo pipefail
cd "$(dirname "$0")/.."

crate=crates/glebe-python
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$target/python
needs=$crate/tests/requirements.txt

skip() {
    echo "skipped: the Python wheel ($1)"
    exit 0
}

# Makes the environment once for each list of what it needs; a broken one is made anew.
environment() {
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        skip "$(python3 --version) is too old; it needs 3.11"
    if ! cmp -s "$needs" "$venv/made-of"; then
        rm -rf "$venv"
        python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 -m venv fails; Debian: python3-venv"
        "$venv/bin/pip" install -q --disable-pip-version-check -r "$needs" ||
            skip "pip cannot fetch what $needs lists"
        cp "$needs" "$venv/made-of"
    fi
    export PATH="$venv/bin:$PATH"
}

# Builds one wheel into an empty folder, with the options given, and installs it.
build() {
    local out=$1
    shift
    rm -rf "$out"
    maturin build -q -m $crate/Cargo.toml --target-dir "$target" -o "$out" "$@"
    pip install -q --disable-pip-version-check --no-deps --force-reinstall "$out"/*.whl
}

environment
case ${1:-} in
test)
    # With the profile and features of the other tests, so that the library is built once.
    build "$target/wheels-tested" --profile dev --features glebe/faults
    python3 -m pytest -q -rs -p no:cacheprovider $crate/tests
    ;;
wheel)
    # By zig for the oldest C library that wheels are made for.
    build "$target/wheels" --release --strip --zig --compatibility manylinux2014
    GLEBE_WHEEL=$(echo "$target"/wheels/*.whl) \
        python3 -m pytest -q -rs -p no:cacheprovider $crate/tests/test_wheel.py
    ls -l "$target"/wheels/*.whl
    ;;
*)
    echo "usage: python.sh test | wheel" >&2
    exit 2
    ;;
esac
