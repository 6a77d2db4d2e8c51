#!/usr/bin/env bash
# Runs the reserve under load, built with the address sanitizer and then with the thread sanitizer.
# Needs a nightly toolchain; without one prints `skipped:` and why.
#
# The sanitizers see every access that the compiler makes. They do not see the copies in and out of
# a reserve, which are assembly: the address sanitizer finds no copy out of bounds, and the thread
# sanitizer no race of a copy. The test itself checks the copied bytes, and `Mapping` and `Frames`
# check the bounds.
#
# The thread sanitizer needs a standard library built with it. If its sources are not installed, the
# script links the ordinary one, whose inner ordering the sanitizer does not see. tsan.supp beside
# this file lists the false reports that follow, with reasons.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export GLEBE_STRESS_SECONDS=${GLEBE_STRESS_SECONDS:-4}
failed=()

if ! command -v cargo >/dev/null || ! version=$(cargo +nightly -vV 2>/dev/null); then
    echo "skipped: sanitizers (no nightly toolchain)"
    exit 0
fi
host=$(sed -n 's/^host: //p' <<<"$version")
root=$(rustc +nightly --print sysroot)

# Builds the library's tests with sanitizer $1 and flags $2, and runs the tests of module $3.
sanitize() {
    local name=$1 flags=$2 test=$3
    shift 3
    echo "== $name sanitizer, $test"
    if ! ls "$root/lib/rustlib/$host/lib/"*_rt."${name:0:1}"san.a >/dev/null 2>&1; then
        echo "skipped: $name sanitizer (not in the toolchain for $host)"
        return
    fi
    CARGO_PROFILE_DEV_DEBUG=line-tables-only RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=$name $flags" \
        cargo +nightly test -p glebe --target "$host" --target-dir "$target_dir/$name-sanitizer" \
        --test it "$@" -- --test-threads=1 --skip swap_store "$test::" || failed+=("$name $test")
}

# Allows linking the ordinary standard library, which is built without a sanitizer.
mismatch=-Cunsafe-allow-abi-mismatch=sanitizer
sanitize address "$mismatch" stress
sanitize address "$mismatch" reserve
if [ -d "$root/lib/rustlib/src/rust/library" ]; then
    sanitize thread "" stress -Zbuild-std
else
    echo "skipped: std under the thread sanitizer (no rust-src); its own reports are left out"
    export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp ${TSAN_OPTIONS:-}"
    sanitize thread "$mismatch" stress
fi

if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
echo "no sanitizer found anything"
