#!/usr/bin/env python3
"""Builds and checks programs that others wrote for the volatile ranges patches (v10), unchanged.

They are volatile-test.c and volatile-test-signal.c of vranges-test. Each fills 26 chunks with the
letters A to Z, makes every other chunk volatile, has a child take memory, and prints the first byte
of each chunk. The first program makes all chunks non-volatile before that; the second has a SIGBUS
handler that refills lost chunks. They are built with glebe_vrange.h and run in memory cgroups of
their own. The script moves a cgroup's limit until chunks are lost and the child still gets its
memory, and checks the output of every run. The first program also runs on a file on tmpfs, built
with -DGLEBE_VRANGE_RECLAIM: a thread of glebe purges there.

    scripts/vranges_tests.py [--built target/debug] [CHECKOUT]

CHECKOUT is a work tree or a git directory; without it the script clones the repository. Prints
`skipped:` without sources, without a C compiler, or if it cannot make a cgroup. Exits with 1 if a
run printed wrong output.
"""

import argparse
import os
import pathlib
import shutil
import string
import subprocess
import sys
import tempfile

from memory_group import Group

PUBLIC = "https://github.com/volatile-ranges-test/vranges-test"
HEADER = pathlib.Path(__file__).resolve().parent.parent / "crates/glebe-c/include/glebe_vrange.h"
PROGRAMS = ["volatile-test", "volatile-test-signal"]
# gnu89 allows a parameter without a type. Without builtins, the compiler keeps the child's memory,
# which is unused.
OPTIONS = f"-std=gnu89 -w -fno-builtin -include {HEADER}"
# The program built with a thread that purges memory of MAP_SHARED, and its new name.
WITH_THREAD = ("volatile-test", "volatile-test-reclaim")
TMPFS = pathlib.Path("/dev/shm")
PRESSURE_MB = 3
# More pressure for the thread, which needs some milliseconds to react.
PRESSURE_THREAD_MB = 32
CHUNKS = string.ascii_uppercase
CHUNK_KIB = 16
VOLATILE_KIB = CHUNK_KIB * len(CHUNKS) // 2
# Wanted runs with losses, as many as the programs' own script makes; and most runs tried.
WANTED = 5
TRIED = 60
STEP_KIB = 32
PATIENCE_S = 60


class Wrong(Exception):
    """Wrong output of a program."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", nargs="?")
    parser.add_argument("--built", default="target/debug", help="the folder with libglebe.so")
    args = parser.parse_args()
    library = pathlib.Path(args.built).resolve() / "libglebe.so"
    if not library.exists():
        print(f"{library}: not there; cargo build -p glebe-c", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        why = missing() or unpack(args.checkout, folder)
        if why:
            print(f"skipped: programs of the volatile ranges patches ({why})")
            return 0
        build(folder, library)
        print(f"{'program':<28} {'limit KiB':>9} {'outcome':<8} chunks lost")
        try:
            for name in PROGRAMS:
                check_program(folder, name)
            check_file(folder)
            check_file_in_memory(folder)
        except Wrong as wrong:
            print(f"FAIL: {wrong}")
            return 1
    return 0


def missing():
    for tool in ["cc", "make", "git"]:
        if not shutil.which(tool):
            return f"{tool} is not installed"
    try:
        with Group("vranges"):
            return None
    except OSError as error:
        return f"no memory cgroup can be made: {error}"


def unpack(checkout, folder):
    """Copies the programs from a work tree, a git directory or a clone. Returns why it cannot."""
    if checkout and (pathlib.Path(checkout) / "Makefile").exists():
        for name in ["Makefile", *(f"{program}.c" for program in PROGRAMS)]:
            shutil.copy(pathlib.Path(checkout) / name, folder)
        return None
    if not checkout:
        checkout = folder / "clone"
        why = clone(checkout)
        if why:
            return why
    archive = subprocess.run(["git", f"--git-dir={checkout}", "archive", "HEAD"],
                             capture_output=True, check=False)
    if archive.returncode:
        return f"{checkout}: no checkout and no git directory"
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return None


def clone(to):
    command = ["git", "clone", "--quiet", "--bare", "--depth", "1", PUBLIC, str(to)]
    quiet = dict(os.environ, GIT_TERMINAL_PROMPT="0")
    try:
        ran = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"no checkout is given, and a clone of {PUBLIC} took over {PATIENCE_S} s"
    if not ran.returncode:
        return None
    last = ran.stderr.strip().splitlines()[-1:]
    return f"no checkout is given, and no clone can be had: {' '.join(last)}"


def build(folder, library):
    for name in ["libglebe.so", "libglebe.so.0"]:
        shutil.copy(library, folder / name)
    environment = dict(os.environ, CFLAGS=OPTIONS, LDLIBS="-lglebe",
                       LDFLAGS=f"-L{folder} -Wl,-rpath,{folder}")
    subprocess.run(["make", "-s", *PROGRAMS], cwd=folder, env=environment, check=True)
    name, renamed = WITH_THREAD
    shutil.copy(folder / f"{name}.c", folder / f"{renamed}.c")
    environment["CFLAGS"] += " -DGLEBE_VRANGE_RECLAIM"
    subprocess.run(["make", "-s", renamed], cwd=folder, env=environment, check=True)


def check_program(folder, name):
    check = {"volatile-test": check_told, "volatile-test-signal": check_refilled}[name]
    command = [folder / name]
    check_runs(name, PRESSURE_MB, lambda limit, mb: run(name, command, mb, limit, check))


def check_file_in_memory(folder):
    """Runs on a file on tmpfs, whose pages count in the cgroup."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", TMPFS], capture_output=True, text=True)
    if kind.stdout.strip() != "tmpfs":
        print(f"skipped: {WITH_THREAD[0]} -f on tmpfs ({TMPFS} is none)")
        return

    def run_on_file(limit_kib, pressure_mb):
        with tempfile.NamedTemporaryFile(dir=TMPFS, prefix="glebe-vranges-") as data:
            # Makes a hole: pages that this script wrote would belong to the script's own cgroup.
            data.truncate((len(CHUNKS) * CHUNK_KIB << 10) + (8 << 10))
            command = [folder / WITH_THREAD[1], "-f", data.name]
            return run(name, command, pressure_mb, limit_kib, check_told)

    name = f"{WITH_THREAD[0]} -f tmpfs"
    check_runs(name, PRESSURE_THREAD_MB, run_on_file)


def check_runs(name, pressure_mb, run_once):
    """Runs without pressure, then moves the limit until enough runs have lost chunks."""
    status, lost, _, peak_kib = run_once(None, 0)
    report(name, None, status, lost)
    if lost:
        raise Wrong(f"{name}: {lost} lost without pressure")
    _, _, _, peak_kib = run_once(None, pressure_mb)
    limit_kib, losses, checked = peak_kib - VOLATILE_KIB, 0, 0
    for _ in range(TRIED):
        status, lost, killed, _ = run_once(limit_kib, pressure_mb)
        checked += status == 0
        # A killed child has not got its memory: the rest of the memory did not fit.
        report(name, limit_kib, "killed" if killed else status, lost)
        losses += bool(lost) and not killed
        if losses == WANTED:
            print(f"{name}: {checked} runs under pressure checked, {losses} with losses")
            return
        if killed:
            limit_kib += STEP_KIB
        elif not lost:
            limit_kib -= STEP_KIB
    raise Wrong(f"{name}: {losses} of {TRIED} runs under pressure lost anything; {WANTED} wanted")


def run(name, command, pressure_mb, limit_kib, check):
    """Runs in a cgroup of its own. Returns exit status, chunks lost, processes killed, peak."""
    with Group("vranges", limit_kib) as group:
        status, text = run_inside(group, [*command, "-p", str(pressure_mb)])
        killed, peak_kib = group.killed(), group.peak_kib()
    if status and not killed:
        raise Wrong(f"{name}: exit status {status}, having printed {text!r}")
    return status, "" if status else check(name, text), killed, peak_kib


def run_inside(group, command):
    ran = subprocess.run(command, preexec_fn=group.enter, capture_output=True, timeout=PATIENCE_S)
    return ran.returncode, ran.stdout.decode("latin-1")


def report(name, limit_kib, outcome, lost):
    outcome = "ok" if outcome == 0 else outcome
    print(f"{name:<28} {limit_kib or 'none':>9} {outcome:<8} {lost or '-'}", flush=True)


def check_told(name, text):
    """Checks that lost chunks hold zeros and others their letter, and that a loss is reported.
    Returns the letters of the lost chunks."""
    # The child also prints what the parent had buffered at the fork.
    told = ("Generating", "Using file")
    lines = [line for line in text.split("\n") if not line.startswith(told)]
    is_said = lines[0] == "Data purged!"
    lines = lines[is_said:]
    lost = "".join(letter for letter, line in zip(CHUNKS, lines) if line == "\0")
    expected = ["\0" if letter in lost else letter for letter in CHUNKS]
    if lines != [*expected, ""] or set(lost) - set(CHUNKS[::2]):
        raise Wrong(f"{name}: printed {text!r}")
    if lost and not is_said:
        raise Wrong(f"{name}: {lost} lost, and not said")
    return lost or ("within chunks" if is_said else "")


def check_refilled(name, text):
    """Checks that every chunk has its letter, after the handler's words if it was lost. Returns the
    letters of the lost chunks."""
    lost, expected = "", ""
    for letter in CHUNKS:
        refill = f"Fixing up data\n{letter}\n"
        if letter in CHUNKS[::2] and text[len(expected):].startswith(refill):
            lost, expected = lost + letter, expected + refill
        expected += f"{letter}\n"
    if text != expected:
        raise Wrong(f"{name}: printed {text!r}")
    return lost


def check_file(folder):
    """Checks that memory of a file keeps its letters without a thread that purges."""
    data = folder / "data"
    data.write_bytes(bytes((len(CHUNKS) * CHUNK_KIB << 10) + (8 << 10)))
    name = "volatile-test"
    with Group("vranges") as group:
        status, text = run_inside(group, [folder / name, "-p", str(PRESSURE_MB), "-f", data])
    lost = check_told(name, text)
    if status or lost:
        raise Wrong(f"{name} -f: exit status {status}, {lost} lost")
    report(f"{name} -f", None, status, lost)
    print("skipped: volatile-test-signal -f (it opens the name of its first option)")


if __name__ == "__main__":
    sys.exit(main())
