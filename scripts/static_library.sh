#!/usr/bin/env bash
# Makes the static library that is installed: one object, of which nothing but the functions of
# glebe.h can be seen from outside. What cargo builds also shows its zstd, its LZ4 and Rust's own
# library, which would take the place of the program's, or clash with them.
#
# Usage: static_library.sh FOLDER-OF-THE-BUILD RESULT
# The names are those that the shared library exports. Needs binutils (nm, ld, objcopy, ar), which
# come with every C compiler; NM, LD, OBJCOPY and AR name others, for another processor.
set -euo pipefail

built=$1 result=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${NM:-nm}" -D --defined-only "$built/libglebe.so" | cut -d ' ' -f 3 >"$scratch/names"
[ -s "$scratch/names" ] || { echo "error: $built/libglebe.so exports nothing" >&2; exit 1; }
sed 's/^/--undefined=/' "$scratch/names" >"$scratch/wanted"

# Sections that are one wherever they stem from are made ordinary ones: their names are no longer
# seen afterwards, and a second library of Rust's in the program has the same.
"${LD:-ld}" -r --force-group-allocation @"$scratch/wanted" "$built/libglebe.a" \
    -o "$scratch/glebe.o"
# The code for link-time optimizers, put one after the other, is none; they would stumble at it.
"${OBJCOPY:-objcopy}" --keep-global-symbols="$scratch/names" \
    --remove-section=.llvmbc --remove-section=.llvmcmd "$scratch/glebe.o"
rm -f "$result"
"${AR:-ar}" rcs "$result" "$scratch/glebe.o"
