#!/bin/sh
# Builds every fuzz target as cargo-fuzz would, without needing it, and runs each for the given
# number of seconds (60 if none is given). Inputs that found something new stay in corpus/TARGET,
# an input that fails in artifacts/TARGET; to run one again: its path as the target's argument.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Apart from the other build's: the flags differ.
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

for source in fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "== $target, $seconds s"
    "$target_dir/$triple/release/$target" -max_total_time="$seconds" -max_len=4096 \
        -artifact_prefix="artifacts/$target/" -print_final_stats=1 "corpus/$target"
done
