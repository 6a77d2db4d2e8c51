#!/usr/bin/env bash
# Makes the static library for installation: one object that exports only the functions of glebe.h.
# cargo's library also exports its zstd, its LZ4 and Rust's standard library, which would replace or
# clash with the program's own.
#
# Usage: static_library.sh FOLDER-OF-THE-BUILD RESULT
# The shared library's exports give the names. Needs binutils (nm, ld, objcopy, ar), which each C
# compiler brings. NM, LD, OBJCOPY and AR may name the tools for another processor.
set -euo pipefail

built=$1 result=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${NM:-nm}" -D --defined-only "$built/libglebe.so" | cut -d ' ' -f 3 >"$scratch/names"
[ -s "$scratch/names" ] || { echo "error: $built/libglebe.so exports nothing" >&2; exit 1; }
sed 's/^/--undefined=/' "$scratch/names" >"$scratch/wanted"

# Turns COMDAT groups into ordinary sections: the next step hides their symbols, and another Rust
# library in the program may have groups with equal names.
"${LD:-ld}" -r --force-group-allocation @"$scratch/wanted" "$built/libglebe.a" \
    -o "$scratch/glebe.o"
# Joined bitcode for link-time optimizers is invalid, and they would fail on it.
"${OBJCOPY:-objcopy}" --keep-global-symbols="$scratch/names" \
    --remove-section=.llvmbc --remove-section=.llvmcmd "$scratch/glebe.o"
rm -f "$result"
"${AR:-ar}" rcs "$result" "$scratch/glebe.o"
