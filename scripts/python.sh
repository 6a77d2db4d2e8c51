#!/usr/bin/env bash
# Builds and tests glebe's Python package in a virtual environment under the target folder.
#
# Usage: python.sh environment         makes the environment; pip fetches what the tests need
#        python.sh install MODULE      installs the package there, with a module built by cargo
#        python.sh test                tests the installed package, except leases
#        python.sh test-leases         tests leases, which use the machine's pool of huge pages
#        python.sh test-nobody         repeats tests that depend on privileges as nobody; root only
#        python.sh test-distributed    runs the spill tests of distributed, from a checkout named by
#                                      DISTRIBUTED_TEST or a clone
#        python.sh test-free-threaded  builds and tests a wheel for each free-threaded interpreter
#        python.sh wheel               builds the wheel and the sources for users, in TARGET/wheels,
#                                      checks their form, and runs the notebooks and the examples of
#                                      the page
#        python.sh wheels              does so, and builds and checks the wheel for aarch64 too
# Prints `skipped:` and why, and exits 0, if Python is too old or has no venv, or pip cannot fetch.
set -euo pipefail
cd "$(dirname "$0")/.."

# The tests need no threads of NumPy, which spin while they wait.
export OPENBLAS_NUM_THREADS=1
crate=crates/glebe-python
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$target/python
needs=$crate/tests/requirements.txt
needs_of_wheel=$crate/tests/requirements-wheel.txt

skip() {
    echo "skipped: the Python wheel ($1)"
    exit 0
}

# Installs the packages of list $1 with pip, once for each content of the list.
fetch() {
    local made_of
    made_of=$venv/$(basename "$1")
    cmp -s "$1" "$made_of" && return
    "$venv/bin/pip" install -q --no-compile --disable-pip-version-check -r "$1" || skip "pip cannot fetch what $1 lists"
    cp "$1" "$made_of"
}

environment() {
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        skip "$(python3 --version) is too old; it needs 3.11"
    if ! "$venv/bin/python3" -c '' 2>/dev/null; then
        rm -rf "$venv"
        python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 -m venv fails; Debian: python3-venv"
    fi
    fetch "$needs"
    export PATH="$venv/bin:$PATH"
}

# Copies the package into the environment: the sources, and the module $1 that cargo has built.
install_package() {
    local packages
    packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf "$packages/glebe"
    cp -r $crate/python/glebe "$packages/glebe"
    cp "$1" "$packages/glebe/_glebe.abi3.so"
}

# Builds a wheel into the folder $1, emptied before, with the given options, and installs it.
build() {
    local out=$1
    shift
    rm -rf "$out"
    maturin build -q -m $crate/Cargo.toml --target-dir "$target" -o "$out" "$@"
    pip install -q --disable-pip-version-check --no-deps --force-reinstall "$out"/*.whl
}

# Builds the wheel for aarch64 beside this machine's. Skips if there is no compiler for it.
build_aarch64() {
    local said
    said=$(scripts/aarch64.sh compiler)
    case $said in *skipped:*) echo "$said"; return ;; esac
    # A target folder of its own: this compiler may be another release than this machine's.
    RUSTC=$(tail -n 1 <<<"$said") maturin build -q -m $crate/Cargo.toml --target-dir "$target/aarch64" \
        --target aarch64-unknown-linux-gnu -o "$target/wheels" "$@"
}

# Runs pytest with a temporary folder, which it removes.
run_pytest() {
    local folder status=0
    folder=$(mktemp -d)
    TMPDIR=$folder python3 -m pytest -q -rs -p no:cacheprovider "$@" || status=$?
    rm -rf "$folder"
    return $status
}

# Runs the tests as user and group 65534, without groups and so without capabilities, from copies
# that this user can read. Six files of tests do not depend on the user: test_wheel never runs
# here, the other five run only with GLEBE_LONG. Leases need a pool, which this user may not fill.
as_nobody() {
    local scratch packages tests pure status=0
    [ "$(id -u)" = 0 ] || { echo "skipped: tests as another user (the caller is not root)"; return 0; }
    scratch=$(mktemp -d)
    packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$scratch/packages" "$scratch/tree/$crate" "$scratch/tree/docs"
    # Leaves out large packages, which these tests do not need.
    tar -C "$packages" -c --exclude={ziglang,pyarrow,mypy,mypyc,dask,distributed,pip,setuptools} . |
        tar -C "$scratch/packages" -x
    cp -r $crate/tests $crate/examples $crate/pyproject.toml "$scratch/tree/$crate/"
    cp docs/python.md "$scratch/tree/docs/"
    chmod -R a+rX "$scratch"
    mkdir -m 1777 "$scratch/home"
    tests=$scratch/tree/$crate/tests
    pure=(--ignore="$tests/test_wheel.py" --ignore="$tests/test_leases.py")
    [ -n "${GLEBE_LONG:-}" ] || pure+=(--ignore="$tests/test_"{cache,cuda,page,strangers,threads}".py")
    python3 -c '
import os, sys
home = sys.argv[1]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.chdir(home)
os.environ.update(HOME=home, TMPDIR=home, PYTHONPATH=home + "/../packages", PYTHONDONTWRITEBYTECODE="1")
os.execv(sys.argv[2], sys.argv[2:])' "$scratch/home" "$(command -v /usr/bin/python3 || command -v python3)" \
        -m pytest -q -rs -p no:cacheprovider "$tests" "${pure[@]}" || status=$?
    rm -rf "$scratch"
    return $status
}

free_threaded() {
    local name env found=
    for name in python3.14t python3.15t; do
        "$name" -c 'import sys; sys.exit(sys._is_gil_enabled())' 2>/dev/null || continue
        [ -n "$found" ] || fetch "$needs_of_wheel"
        found=yes
        env=$target/$name
        if ! cmp -s "$needs" "$env/made-of"; then
            rm -rf "$env"
            "$name" -m venv "$env"
            # The other packages have no wheel for these interpreters, or only check types.
            if ! grep -E '^(fsspec|hypothesis|numpy|pyarrow|pytest|zict)==' "$needs" |
                "$env/bin/pip" install -q --disable-pip-version-check --only-binary :all: -r /dev/stdin; then
                echo "skipped: tests with $name (pip cannot fetch what they need)"
                continue
            fi
            cp "$needs" "$env/made-of"
        fi
        (
            export PATH="$env/bin:$PATH"
            build "$target/wheels-$name" --profile dev --features glebe/cuda,glebe/faults -i "$env/bin/python3"
            run_pytest $crate/tests --ignore $crate/tests/test_leases.py
        )
    done
    [ -n "$found" ] || echo "skipped: tests without a global lock (no python3.14t on PATH)"
}

environment
case ${1:-} in
environment) ;;
install) install_package "$2" ;;
test) run_pytest $crate/tests --ignore $crate/tests/test_leases.py ;;
test-leases) run_pytest $crate/tests/test_leases.py ;;
test-nobody) as_nobody ;;
test-free-threaded) free_threaded ;;
test-distributed) python3 scripts/distributed_tests.py ${DISTRIBUTED_TEST:+"$DISTRIBUTED_TEST"} ;;
wheel | wheels)
    fetch "$needs_of_wheel"
    # zig links for the oldest C library that wheels support.
    options=(--profile "${PROFILE:-release}" --strip --zig --compatibility manylinux2014)
    build "$target/wheels" "${options[@]}"
    [ "$1" = wheel ] || build_aarch64 "${options[@]}"
    maturin sdist -m $crate/Cargo.toml -o "$target/wheels" >/dev/null
    GLEBE_WHEELS=$target/wheels run_pytest $crate/tests/test_wheel.py $crate/tests/test_page.py
    ls -l "$target"/wheels
    ;;
*)
    sed -n '2,/^# Prints/s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
