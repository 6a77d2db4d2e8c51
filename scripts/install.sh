#!/usr/bin/env bash
# Installs what is already built (the C library, the allocator, the command) where compilers,
# pkg-config, CMake, shells and man find it, or removes the same files.
#
# Usage: install.sh FOLDER-OF-THE-BUILD
#        install.sh --uninstall
# PREFIX (/usr/local), LIBDIR and INCLUDEDIR name the folders for use. DESTDIR goes before them only
# for copying, for packages.
set -euo pipefail
cd "$(dirname "$0")/.."

built=$1
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
soname=libglebe.so.0
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

for folder in "$prefix" "$libdir" "$includedir"; do
    [ "${folder#/}" != "$folder" ] || { echo "error: $folder is not an absolute path" >&2; exit 1; }
done
include_from_cmake=$(realpath -m -s --relative-to="$libdir/cmake/glebe" "$includedir")
libs=${DESTDIR:-}$libdir
share=${DESTDIR:-}$prefix/share

# Places a file at $2, made by the command that follows, with mode $1. With --uninstall, removes the
# file instead: since every file is placed here, exactly these are removed.
place() {
    local mode=$1 at=$2
    shift 2
    rm -f "$at"
    [ "$built" != --uninstall ] || return 0
    mkdir -p "$(dirname "$at")"
    "$@" "$at"
    [ "$mode" = link ] || chmod "$mode" "$at"
}

# Fills in the template crates/glebe-c/$1.in.
template() {
    local text
    text=$(<"crates/glebe-c/$1.in")
    text=${text//@PREFIX@/"$prefix"}
    text=${text//@LIBDIR@/"$libdir"}
    text=${text//@INCLUDEDIR@/"$includedir"}
    text=${text//@INCLUDE_FROM_HERE@/"$include_from_cmake"}
    text=${text//@SONAME@/"$soname"}
    text=${text//@VERSION@/"$version"}
    printf '%s\n' "$text" >"$2"
}

# Copies a unit or a file of settings from systemd/, with the command's path in this prefix.
unit() {
    sed "s|/usr/bin/glebe|$prefix/bin/glebe|" "systemd/$1" >"$2"
}

place 755 "$libs/libglebe.so.$version" cp "$built/libglebe.so"
place link "$libs/$soname" ln -s "libglebe.so.$version"
place link "$libs/libglebe.so" ln -s "$soname"
place 644 "$libs/libglebe.a" cp "$built/static/libglebe.a"
# Their names have no version, because programs open them by path, in LD_PRELOAD.
place 755 "$libs/libglebe_malloc.so" cp "$built/libglebe_malloc.so"
place 755 "$libs/libglebe_huge.so" cp "$built/libglebe_huge.so"
for header in crates/glebe-c/include/*.h crates/glebe-{huge,preload}/include/*.h; do
    place 644 "${DESTDIR:-}$includedir/${header##*/}" cp "$header"
done
for example in crates/glebe-c/examples/*.c; do
    place 644 "$share/doc/glebe/examples/${example##*/}" cp "$example"
done
place 644 "$libs/pkgconfig/glebe.pc" template glebe.pc
place 644 "$libs/cmake/glebe/glebeConfig.cmake" template glebeConfig.cmake
place 644 "$libs/cmake/glebe/glebeConfigVersion.cmake" template glebeConfigVersion.cmake

place 755 "${DESTDIR:-}$prefix/bin/glebe" cp "$built/glebe"
for page in man/*.1; do
    place 644 "$share/man/man1/${page#man/}" cp "$page"
done
place 644 "$share/bash-completion/completions/glebe" cp "$built/completions/bash"
place 644 "$share/zsh/site-functions/_glebe" cp "$built/completions/zsh"
place 644 "$share/fish/vendor_completions.d/glebe.fish" cp "$built/completions/fish"

# They are installed but not enabled.
for name in glebe.service glebe-blocks.service glebe-leases.socket; do
    place 644 "${DESTDIR:-}$prefix/lib/systemd/system/$name" unit "$name"
done
place 644 "${DESTDIR:-}$prefix/lib/sysusers.d/glebe.conf" unit glebe.conf

if [ "$built" = --uninstall ]; then
    for folder in "$libs/cmake/glebe" "$share/doc/glebe/examples" "$share/doc/glebe"; do
        if [ -d "$folder" ]; then
            rmdir --ignore-fail-on-non-empty "$folder"
        fi
    done
    echo "glebe $version removed from ${DESTDIR:-}$prefix"
else
    echo "glebe $version installed in ${DESTDIR:-}$prefix"
    echo "(once, where $libdir is a folder of the loader's: ldconfig)"
fi
