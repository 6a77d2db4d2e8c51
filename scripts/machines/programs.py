"""Builds the test programs of an architecture, and finds the libraries that they load."""

import os
import pathlib
import platform
import re
import shutil
import subprocess

from testing import build

from . import table
from .table import Skipped

NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
TRIPLE = "aarch64-unknown-linux-gnu"
CROSS = "aarch64-linux-gnu-gcc"


def compiler_of(architecture):
    """Returns the C compiler that links programs for an architecture. Raises Skipped."""
    if architecture == NATIVE:
        return "cc"
    if architecture != "arm64":
        raise Skipped(f"programs for {architecture} are built only on {architecture}")
    if not shutil.which(CROSS):
        raise Skipped(f"no {CROSS} on this machine")
    return CROSS


def cross_environment():
    """Returns cargo's environment for aarch64. Raises Skipped without a standard library."""
    done = subprocess.run(["scripts/aarch64.sh", "compiler"], capture_output=True, text=True)
    last = (done.stdout.splitlines() or [""])[-1]
    if "skipped: " in done.stdout:
        raise Skipped(last.removeprefix("skipped: "))
    if done.returncode != 0:
        raise build.Failed(f"scripts/aarch64.sh compiler\n{done.stderr}")
    linker = f"CARGO_TARGET_{TRIPLE.replace('-', '_').upper()}_LINKER"
    return {**os.environ, "RUSTC": last, linker: CROSS}


def words_of():
    """Returns cargo's words for the packages whose tests run in guests."""
    # With fewer packages cargo would build some of them again.
    packages = sorted({name.partition("/")[0] for name in table.tests()})
    words = ["test", "--no-run", *(word for package in packages for word in ("-p", package))]
    words += ["--features", ",".join(f"{package}/faults" for package in packages), "--lib"]
    targets = sorted({name.partition("/")[2] for name in table.tests()} - {"unit"})
    return [*words, *(word for target in targets for word in ("--test", target))]


def of(architecture, names, at_hand=False):
    """Builds the named test programs with the features of `make test`; `at_hand`: with its words,
    and so builds none again. Returns their paths by name. Raises Skipped or build.Failed."""
    compiler_of(architecture)
    words, environment = words_of(), None
    if at_hand:
        if architecture != NATIVE:
            raise Skipped(f"`make test` builds nothing for {architecture}")
        words = ["build", *build.packages(with_benchmarks=False), *build.TARGETS]
    elif architecture != NATIVE:
        environment = cross_environment()
        words += ["--target", TRIPLE, "--target-dir", str(build.TARGET / "aarch64")]
    programs = {}
    for message in build.artifacts(words, environment):
        if message["executable"] and message["profile"]["test"]:
            programs[build.name_of(message)] = pathlib.Path(message["executable"])
    if missing := sorted(set(names) - programs.keys()):
        raise build.Failed(f"cargo builds no {', '.join(missing)}")
    return {name: programs[name] for name in names}


def libraries(programs, compiler):
    """Returns the loader and the shared libraries of programs: paths in a guest, and here."""
    found, waiting = {}, list(programs)
    while waiting:
        file = waiting.pop()
        words = ["readelf", "--wide", "--dynamic", "--program-headers", file]
        # The pattern below is of the untranslated text.
        text = subprocess.run(words, capture_output=True, text=True, check=True,
                              env={**os.environ, "LC_ALL": "C"}).stdout
        if loader := re.search(r"program interpreter: (\S+)\]", text):
            found[loader[1]] = path_of(os.path.basename(loader[1]), compiler)
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", text):
            if f"/lib/{name}" not in found:
                found[f"/lib/{name}"] = path_of(name, compiler)
                waiting.append(found[f"/lib/{name}"])
    return found


def path_of(library, compiler):
    words = [compiler, f"-print-file-name={library}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
