#!/usr/bin/env bash
# Puts the C library, which is built already, where compilers, pkg-config and CMake find it.
#
# Usage: install.sh FOLDER-OF-THE-BUILD
# PREFIX (/usr/local), LIBDIR and INCLUDEDIR are where it is to be used; DESTDIR is put before them
# for the copying alone, as packages want it.
set -euo pipefail
cd "$(dirname "$0")/.."

built=$1
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
soname=libglebe.so.0
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

for folder in "$prefix" "$libdir" "$includedir"; do
    [ "${folder#/}" != "$folder" ] || { echo "error: $folder is not an absolute path"; exit 1; }
done
include_from_cmake=$(realpath -m -s --relative-to="$libdir/cmake/glebe" "$includedir")
libs=${DESTDIR:-}$libdir

# Fills in the template crates/glebe-c/$1.in and installs it in folder $2.
template() {
    local text
    text=$(<"crates/glebe-c/$1.in")
    text=${text//@PREFIX@/"$prefix"}
    text=${text//@LIBDIR@/"$libdir"}
    text=${text//@INCLUDEDIR@/"$includedir"}
    text=${text//@INCLUDE_FROM_HERE@/"$include_from_cmake"}
    text=${text//@SONAME@/"$soname"}
    text=${text//@VERSION@/"$version"}
    install -d "$2"
    printf '%s\n' "$text" >"$2/$1"
    chmod 644 "$2/$1"
}

install -d "$libs" "${DESTDIR:-}$includedir"
install -m 755 "$built/libglebe.so" "$libs/libglebe.so.$version"
ln -sf "libglebe.so.$version" "$libs/$soname"
ln -sf "$soname" "$libs/libglebe.so"
scripts/static_library.sh "$built" "$libs/libglebe.a"
chmod 644 "$libs/libglebe.a"
install -m 644 crates/glebe-c/include/glebe.h "${DESTDIR:-}$includedir/"
template glebe.pc "$libs/pkgconfig"
template glebeConfig.cmake "$libs/cmake/glebe"
template glebeConfigVersion.cmake "$libs/cmake/glebe"
echo "glebe $version installed in ${DESTDIR:-}$prefix"
