#!/usr/bin/env bash
# Builds the library and its C interface for aarch64, to see that aarch64-only code and assembly
# compile.
#
# Needs the compiler's standard library for aarch64. Takes the first of:
#   1. the installed toolchain;
#   2. Debian's packages of one Rust release for both architectures, unpacked (not installed) under
#      the target folder with an apt state of its own: the machine's packages stay unchanged.
# Prints `skipped: ...` and succeeds if it gets neither. Needs no aarch64 linker: the libraries are
# compiled and assembled, not linked.
#
# AARCH64_STD=debian skips 1. `aarch64.sh compiler` builds nothing, and its last line is the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

triple=aarch64-unknown-linux-gnu
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")
sysroot=$target_dir/aarch64-sysroot
compiler=$sysroot/rustc.sh
network_seconds=150

skip() {
    echo "skipped: no aarch64 standard library ($*)"
    exit 0
}

toolchain_has_std() {
    local libs
    libs=$("${RUSTC:-rustc}" --print target-libdir --target "$triple" 2>/dev/null) || return 1
    compgen -G "$libs/libstd-*.rlib" >/dev/null
}

# Prints direct dependencies of package $1 whose name matches $2.
depends_on() {
    apt-cache depends --no-recommends --no-suggests "$1" 2>/dev/null |
        sed -n 's/^ *|\?Depends: //p' | grep -E "$2" || true
}

# Prints the libraries that the compiler loads and that a machine with a C compiler may lack. libc
# and its kin are left out: a private copy could differ from the loader in use.
shared_libraries_of() {
    apt-cache depends --recurse --important "$1" 2>/dev/null | sed -n 's/^ *|\?Depends: //p' |
        grep -E '^lib' | grep -vE '^lib(c6|gcc-s1|stdc\+\+6|crypt1)(:|$)' | sort -u || true
}

# Prints the packages of a cross compiler, or nothing if Debian has none.
packages() {
    local rustc dev std
    for rustc in rustc-web rustc; do
        dev=$(depends_on "$rustc" '^libstd-rust(-web)?-dev$' | head -n 1)
        [ -n "$dev" ] || continue
        std=$(depends_on "$dev" '^libstd-rust(-web)?-[0-9.]+$' | head -n 1)
        [ -n "$std" ] || continue
        apt-cache show "$dev:arm64" >/dev/null 2>&1 || continue
        echo "$rustc $dev:amd64 $dev:arm64 $std:amd64"
        shared_libraries_of "$std"
        return
    done
}

# Fetches and unpacks Debian's compiler into $sysroot. Writes the wrapper script last: its presence
# means that the rest is complete.
unpack_debian() {
    local work=$1 sources=/etc/apt/sources.list wanted deb
    [ -f /etc/apt/sources.list.d/debian.sources ] && sources=/etc/apt/sources.list.d/debian.sources
    mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,root}
    : >"$work/status"
    cat >"$work/apt.conf" <<CONF
Dir::State "$work";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$sources";
Dir::Etc::sourceparts "-";
#clear APT::Architectures;
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "1";
Acquire::http::Timeout "20";
CONF
    export APT_CONFIG=$work/apt.conf
    timeout "$network_seconds" apt-get -qq update </dev/null || return 1
    wanted=$(packages)
    [ -n "$wanted" ] || return 1
    # shellcheck disable=SC2086 # one word a package
    (cd "$work/debs" && timeout "$network_seconds" apt-get -qq download $wanted </dev/null) ||
        return 1
    for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root" || return 1; done

    local libs=$sysroot/usr/lib/x86_64-linux-gnu
    cat >"$work/root/rustc.sh" <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH='$libs':'$sysroot/lib/x86_64-linux-gnu' \\
    exec '$sysroot/usr/bin/rustc' --sysroot '$sysroot/usr' "\$@"
WRAPPER
    chmod +x "$work/root/rustc.sh"
    rm -rf "$sysroot"
    mv "$work/root" "$sysroot"
}

if [ "${AARCH64_STD:-}" != debian ] && toolchain_has_std; then
    echo "aarch64: standard library of $("${RUSTC:-rustc}" -V)"
else
    if [ ! -x "$compiler" ]; then
        [ -n "$(command -v apt-get)" ] || skip "none installed, no apt"
        [ "$(dpkg --print-architecture)" = amd64 ] || skip "none installed, not an amd64 machine"
        mkdir -p "$target_dir"
        work=$(mktemp -d "$target_dir/aarch64-fetch.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        unpack_debian "$work" || skip "none installed, and Debian's could not be fetched"
    fi
    version=$("$compiler" -V) || skip "Debian's compiler does not start here"
    echo "aarch64: standard library of Debian's $version"
    export RUSTC=$compiler
fi
if [ "${1:-}" = compiler ]; then
    echo "${RUSTC:-rustc}"
    exit
fi

# Only Rust code is checked here, and nothing is linked, so without a cross compiler the machine's
# own C compiler compiles the C sources of dependencies.
if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
    export CC_aarch64_unknown_linux_gnu=cc AR_aarch64_unknown_linux_gnu=ar
fi

# Keeps dead code and turns optimisation off: functions that would be inlined into other crates are
# compiled and assembled here too. (Generic functions are not.)
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-D warnings -C link-dead-code"
export CARGO_PROFILE_DEV_OPT_LEVEL=0
cargo build -p glebe --lib --target "$triple" --target-dir "$target_dir/aarch64"
cargo rustc -p glebe-c --lib --crate-type staticlib --target "$triple" \
    --target-dir "$target_dir/aarch64"
