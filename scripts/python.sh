#!/usr/bin/env bash
# The wheel of glebe for Python, in a virtual environment that this makes under the target folder.
#
# Usage: python.sh test     builds a wheel like the library's tests, installs it, runs its tests, and
#                           those of others; if root, once more as a user without privileges; and
#                           on each free-threaded interpreter of PATH, with a wheel of its own
#        python.sh wheel    builds the wheel that users install, in TARGET/wheels, tests its form, and
#                           runs the notebooks and the examples of its page
# Tests of distributed are taken from a checkout named by DISTRIBUTED_TEST, or a clone.
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

# Runs the tests, but those of the wheel's form, as user and group 65534 with no groups and so no
# capabilities, from copies that such a user can read wherever the source tree lies.
unprivileged() {
    local scratch packages status=0
    [ "$(id -u)" = 0 ] || return 0
    scratch=$(mktemp -d)
    packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$scratch/packages" "$scratch/tree/$crate" "$scratch/tree/docs"
    # Without what is large and only builds, checks types or is asked for where it is there.
    tar -C "$packages" -c --exclude={ziglang,pyarrow,mypy,mypyc,dask,distributed,pip,setuptools} . |
        tar -C "$scratch/packages" -x
    cp -r $crate/tests $crate/examples $crate/pyproject.toml "$scratch/tree/$crate/"
    cp docs/python.md "$scratch/tree/docs/"
    chmod -R a+rX "$scratch"
    mkdir -m 1777 "$scratch/home"
    python3 -c '
import os, sys
home = sys.argv[1]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.chdir(home)
os.environ.update(HOME=home, TMPDIR=home, PYTHONPATH=home + "/../packages", PYTHONDONTWRITEBYTECODE="1")
os.execv(sys.argv[2], sys.argv[2:])' "$scratch/home" "$(command -v /usr/bin/python3 || command -v python3)" \
        -m pytest -q -rs -p no:cacheprovider "$scratch/tree/$crate/tests" \
        --ignore "$scratch/tree/$crate/tests/test_wheel.py" || status=$?
    rm -rf "$scratch"
    return $status
}

# Builds a wheel for each free-threaded interpreter, and runs the tests there.
free_threaded() {
    local name env found=
    for name in python3.14t python3.15t; do
        "$name" -c 'import sys; sys.exit(sys._is_gil_enabled())' 2>/dev/null || continue
        found=yes
        env=$target/$name
        if ! cmp -s "$needs" "$env/made-of"; then
            rm -rf "$env"
            "$name" -m venv "$env"
            # The others build and check wheels, or have none for such an interpreter.
            if ! grep -E '^(fsspec|hypothesis|numpy|pyarrow|pytest|zict)==' "$needs" |
                "$env/bin/pip" install -q --disable-pip-version-check --only-binary :all: -r /dev/stdin; then
                echo "skipped: tests with $name (pip cannot fetch what they need)"
                continue
            fi
            cp "$needs" "$env/made-of"
        fi
        (
            export PATH="$env/bin:$PATH"
            build "$target/wheels-$name" --profile dev --features glebe/faults -i "$env/bin/python3"
            python3 -m pytest -q -rs -p no:cacheprovider $crate/tests
        )
    done
    [ -n "$found" ] || echo "skipped: tests without a global lock (no python3.14t on PATH)"
}

environment
case ${1:-} in
test)
    # With the profile and features of the other tests, so that the library is built once.
    build "$target/wheels-tested" --profile dev --features glebe/faults
    python3 -m pytest -q -rs -p no:cacheprovider $crate/tests
    unprivileged
    free_threaded
    python3 scripts/distributed_tests.py ${DISTRIBUTED_TEST:+"$DISTRIBUTED_TEST"}
    ;;
wheel)
    # By zig for the oldest C library that wheels are made for.
    build "$target/wheels" --release --strip --zig --compatibility manylinux2014
    GLEBE_WHEEL=$(echo "$target"/wheels/*.whl) \
        python3 -m pytest -q -rs -p no:cacheprovider $crate/tests/test_wheel.py $crate/tests/test_page.py
    ls -l "$target"/wheels/*.whl
    ;;
*)
    echo "usage: python.sh test | wheel" >&2
    exit 2
    ;;
esac
