"""Tries Debian packages in Debian trees: lintian, installation, use, upgrade and removal."""

import pathlib
import re
import shutil
import subprocess
import tempfile

from machines.table import Skipped
from testing.build import Failed

from . import container
from .build import PACKAGES
from .tree import OLDEST, SUITES, Tree

LINTIAN = "lintian --allow-root --display-info --tag-display-limit 0 --fail-on error,warning,info"
# It depends on the build whether some machine code looks like a word that is spelt wrong.
LINTIAN += " --suppress-tags unused-override"
# What packages of any kind leave: dpkg's own records, caches of the loader and of man, users.
STAYS = re.compile(
    r"/(shared|tmp|root|run)(/|$)|/var/(lib/dpkg|log|cache/(ldconfig|man))/"
    r"|/etc/(ld\.so\.cache|\.pwd\.lock|(passwd|group|shadow|gshadow)-?)$"
)
SOURCE = "/usr/share/doc/libglebe-dev/examples"

CMAKE = """
cmake_minimum_required(VERSION 3.10)
project(uses C)
find_package(glebe VERSION REQUIRED)
add_executable(shared EXAMPLES/zpool.c)
target_link_libraries(shared glebe::glebe)
add_executable(static EXAMPLES/zpool.c)
target_link_libraries(static glebe::glebe_static)
"""

# Each is (name, script for sh). VERSION is the packages'; /shared has them, and their next version.
STEPS = [
    ("installs", "dpkg --install /shared/old/*.deb"),
    (
        "the command runs",
        'test "$(glebe --version)" = "glebe VERSION"; glebe probe; '
        "glebe contig status; glebe stats || test $? = 1",
    ),
    ("there is a user and a group", "getent passwd glebe; getent group glebe"),
    (
        "manual pages and completions",
        "zcat /usr/share/man/man1/glebe-serve.1.gz | grep '^.TH.*glebe VERSION'\n"
        "bash -c '. /usr/share/bash-completion/completions/glebe; complete -p glebe'\n"
        "test -s /usr/share/zsh/site-functions/_glebe\n"
        "test -s /usr/share/fish/vendor_completions.d/glebe.fish",
    ),
    (
        "systemd accepts the units",
        "systemd-analyze verify --man=no /usr/lib/systemd/system/glebe*.service "
        "/usr/lib/systemd/system/glebe*.socket",
    ),
    (
        "C programs by pkg-config",
        f"cd /tmp; for source in {SOURCE}/*.c; do\n"
        "cc -Wall -Werror $source $(pkg-config --cflags --libs glebe) -lm -pthread -o a.out; done\n"
        f"cc {SOURCE}/zpool.c $(pkg-config --cflags --libs glebe) -o zpool; ./zpool\n"
        "ldd zpool | grep /libglebe.so.0",
    ),
    (
        "C programs by CMake",
        "mkdir /tmp/cmake; cd /tmp/cmake; cp /shared/CMakeLists.txt .\n"
        "cmake . >/dev/null; make -s\n"
        "./shared; ./static; ldd shared | grep libglebe.so.0; ! ldd static | grep libglebe",
    ),
    (
        "unchanged programs with the allocator",
        "glebe run --malloc -- cat /proc/self/maps | grep /usr/lib/.*/libglebe_malloc.so",
    ),
    (
        "an upgrade keeps settings, and what is enabled",
        "echo GLEBE_MIB=77 >/etc/glebe/serve.env\n"
        "systemctl enable glebe.service glebe-leases.socket\n"
        "dpkg --install /shared/new/*.deb\n"
        "dpkg-query -W -f '${Version} ' PACKAGES | grep -x 'VERSION+1 VERSION+1 VERSION+1 '\n"
        "grep -x GLEBE_MIB=77 /etc/glebe/serve.env\n"
        "systemctl is-enabled glebe.service glebe-leases.socket",
    ),
    ("removes", "dpkg --remove PACKAGES; test -e /etc/glebe/serve.env; ! command -v glebe"),
    ("purges", "dpkg --purge PACKAGES; ! dpkg -l | grep glebe"),
]


class Results:
    """Counts checks, and prints each with its output if it failed."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, name, status, said):
        self.passed, self.failed = self.passed + (status == 0), self.failed + (status != 0)
        print(f"{'ok    ' if status == 0 else 'FAILED'} {name}", flush=True)
        if status != 0:
            print(said.rstrip(), f"-- {name}: status {status}", sep="\n", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped: {name} ({why})", flush=True)


def repack(file, folder, change):
    """Makes a package of what `change` leaves of the unpacked one."""
    with tempfile.TemporaryDirectory() as scratch:
        unpacked = pathlib.Path(scratch, "package")
        subprocess.run(["dpkg-deb", "--raw-extract", file, unpacked], check=True)
        change(unpacked)
        words = ["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", unpacked, folder]
        subprocess.run(words, check=True, capture_output=True)


def next_version(unpacked):
    """Changes a package to the next version of itself."""
    control = unpacked / "DEBIAN" / "control"
    text = re.sub(r"^(Version: .*)$", r"\1+1", control.read_text(), flags=re.MULTILINE)
    control.write_text(re.sub(r"(libglebe0 \(= [^)]*)\)", r"\1+1)", text))


def without_static_library(unpacked):
    """lintian reads the symbols of our one large object for more than a quarter of an hour."""
    for library in unpacked.rglob("*.a"):
        library.unlink()
        sums = unpacked / "DEBIAN" / "md5sums"
        lines = [line for line in sums.read_text().splitlines() if library.name not in line]
        sums.write_text("".join(f"{line}\n" for line in lines))


def packages_in(out):
    """Returns (version, files) of the one set of packages in a folder. Raises Failed."""
    files = [file for name in PACKAGES for file in sorted(out.glob(f"{name}_*.deb"))]
    if len(files) != len(PACKAGES):
        raise Failed(f"{out} has {len(files)} packages, not one each of {', '.join(PACKAGES)}")
    return files[0].name.split("_")[1], files


def use(suite, files, version, results):
    """Installs packages in a tree, uses, upgrades and purges them; what follows a failure is left
    out, because it would fail too."""
    with Tree(suite) as tree:
        for name in ("old", "new"):
            (tree.shared / name).mkdir()
        for file in files:
            shutil.copy(file, tree.shared / "old")
            repack(file, tree.shared / "new", next_version)
        text = CMAKE.replace("VERSION REQ", f"{version} REQ").replace("EXAMPLES", SOURCE)
        (tree.shared / "CMakeLists.txt").write_text(text)
        for name, script in STEPS:
            script = script.replace("VERSION", version).replace("PACKAGES", " ".join(PACKAGES))
            status, said = tree.run("sh", "-euc", script)
            results.add(f"{suite}: {name}", status, said)
            if status != 0:
                return
        left = sorted(path for path in tree.changed() if not STAYS.match(path))
        results.add(f"{suite}: nothing is left", len(left), "\n".join(left))


def lint(files, results):
    with Tree(OLDEST) as tree:
        for file in files:
            repack(file, tree.shared, without_static_library)
        status, said = tree.run("sh", "-c", f"{LINTIAN} /shared/*.deb")
        results.add("lintian", status, said)


def all_of(out):
    """Runs every check on the packages in a folder. Returns the exit status."""
    results = Results()
    version, files = packages_in(out)
    checks = {"lintian": lambda: lint(files, results)}
    for suite in SUITES:
        checks[suite] = lambda suite=suite: use(suite, files, version, results)
    checks["the container"] = lambda: container.check(files, results)
    for name, check in checks.items():
        try:
            check()
        except Skipped as why:
            results.skip(f"packages: {name}", why)
    print(f"{results.passed} passed, {results.failed} failed, {results.skipped} skipped")
    return int(results.failed > 0)
