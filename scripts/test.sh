#!/usr/bin/env bash
# Every test, in each of the circumstances that change what the library does:
#   1. the whole workspace, documentation examples included, with failures of kernel calls built in:
#      the life of a reserve with its n-th call failing, for every n; a pool changed beside;
#   2. the stress tests where the C library registers no restartable sequences (rseq);
#   3. the programs that age a machine and judge it, on little memory;
#   4. the library's tests as a user without privileges, where the caller is root;
#   5. the wheel for Python, with what pip fetches for it;
#   6. behind all these, the concurrency models under loom.
# Ends with what scripts/test_report.py says of all that was printed. Runs all six whatever fails,
# then exits 1 if any did. Needs Rust, Python 3 and a C compiler, nothing else.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$scratch/log
failed=0
# One set of features for all, so that everything is built once.
tested=(--workspace --features glebe/faults)
# Many tests panic in the right place; who looks into a wrong one runs it again, alone.
export RUST_BACKTRACE=0

say() { echo "$*" | tee -a "$log"; }

# Copies what cargo prints but for the lists of tests: it has named each before.
without_lists() {
    grep --line-buffered -vE '^(successes:|    [a-z0-9_:]+( - should panic)?)$' || true
}

# Runs a command as the stage named $1; its output is shown and kept.
stage() {
    local name=$1 begin=$SECONDS result=ok
    shift
    say "== $name"
    "$@" 2>&1 | tee -a "$log" | without_lists || result=failed
    say "== $name: $result, $((SECONDS - begin)) s"
    [ "$result" = ok ] || failed=1
}

# Prints the test programs of the library crate, one a line, its unit tests among them.
library_tests() {
    cargo test "${tested[@]}" --no-run --message-format=json 2>/dev/null | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    made = message.get("executable")
    if made and message["profile"]["test"]:
        package = os.path.basename(os.path.dirname(message["manifest_path"]))
        kind = message["target"]["kind"]
        # The layer test reads the source tree, which need not be readable to others; the walk of
        # faults takes longer than all the others together.
        other = message["target"]["name"] in ("layers", "faults") or "example" in kind
        if package == "glebe" and not other:
            print(made)
'
}

# Runs the library's tests as user and group 65534 with no groups and so no capabilities, from
# copies that such a user can read wherever the source tree lies. Trees make no call that could be
# refused.
unprivileged() {
    local dir=$scratch/unprivileged tests test bad=0
    tests=$(library_tests)
    [ -n "$tests" ] || { echo "error: no test program was built"; return 1; }
    chmod 711 "$scratch"
    mkdir -p "$dir/tmp"
    chmod 755 "$dir"
    chmod 1777 "$dir/tmp"
    while read -r test; do
        install -m 755 "$test" "$dir/" || return 1
        echo "-- $(basename "$test")"
        (cd "$dir/tmp" && python3 -c '
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
here = os.getcwd()
os.execve(sys.argv[1], sys.argv[1:], {**os.environ, "HOME": here, "TMPDIR": here})
' "$dir/$(basename "$test")" --show-output --skip free_tree:: </dev/null) || bad=1
    done <<<"$tests"
    return $bad
}

# The models need processors and nothing else of the machine: they run behind the tests.
nice -n 19 env RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" \
    cargo test -p glebe -p glebe-malloc --no-default-features --lib --profile loom \
    --target-dir "$target_dir/loom" -- --show-output models:: \
    >"$scratch/models" 2>&1 &
models=$!
trap 'kill "$models" 2>/dev/null; rm -rf "$scratch"' EXIT

stage "tests of the workspace" cargo test "${tested[@]}" --no-fail-fast -- --show-output

if [ -f crates/glebe/tests/stress.rs ]; then
    stage "stress without rseq" env GLIBC_TUNABLES=glibc.pthread.rseq=0 \
        cargo test "${tested[@]}" --test stress --test chase -- --show-output
else
    say "skipped: stress without rseq (there is no stress test)"
fi

stage "the aged machine and its judge" scripts/aged/test_aged.py

if [ "$(id -u)" = 0 ]; then
    stage "the library's tests as a user without privileges" unprivileged
else
    say "skipped: tests as another user (the caller is not root, so all ran without privileges)"
fi

stage "the wheel for Python" scripts/python.sh test

begin=$SECONDS
wait "$models"
models_status=$?
say "== wait for the loom models: ok, $((SECONDS - begin)) s"
models() { cat "$scratch/models"; return "$models_status"; }
stage "loom models" models

scripts/test_report.py "$log"
[ "$failed" = 0 ] || exit 1
echo "all tests passed"
