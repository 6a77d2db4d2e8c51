#!/bin/sh
# Builds every fuzz target as cargo-fuzz would, without needing it, and runs each for $1 seconds (60
# by default). Keeps inputs that found something new in corpus/TARGET, and an input that fails in
# artifacts/TARGET. To run an input again, pass its path to the target.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Uses its own folder, because the flags differ from those of other builds.
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-$here/target}")/fuzz
cd "$here"
seconds=${1:-60}
triple=x86_64-unknown-linux-gnu

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "skipped: no nightly toolchain"
    exit 0
fi

RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo +nightly build --release --bins --target "$triple" --target-dir "$target_dir"

export dir="$target_dir/$triple/release" seconds
# Runs as many at once as there are processors, and prints the output of each when it ends.
for source in fuzz_targets/*.rs; do
    basename "$source" .rs
done | xargs -P "$(nproc)" -n 1 sh -euc '
    mkdir -p "corpus/$1" "artifacts/$1"
    status=0
    said=$("$dir/$1" -max_total_time="$seconds" -max_len=4096 \
        -artifact_prefix="artifacts/$1/" -print_final_stats=1 "corpus/$1" 2>&1) || status=$?
    printf "== %s, %s s\n%s\n" "$1" "$seconds" "$said"
    exit "$status"' fuzz
