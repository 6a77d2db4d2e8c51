#!/usr/bin/env python3
"""Runs programs that others wrote with another malloc preloaded, and compares each with itself.

    scripts/malloc_programs.py --lib LIBRARY [--long] [--only PROGRAM] [--in CIRCUMSTANCE]
    scripts/malloc_programs.py --self-test

Each program must print the same, leave the same files, add nothing to standard error, succeed in
time, and leave no process. Each runs plainly; some also run in other circumstances: with parts of
the allocator off, as another user, with kernel calls denied, in a small memory cgroup, with few
addresses. With --long all do, on more data. With --self-test the library is one of several with a
known fault, which must be noticed. Prints a table, and `skipped:` with the reason for what is
missing. Exits with 1 if anything failed.
"""

import argparse
import contextlib
import dataclasses
import difflib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from memory_group import Group
from programs.cases import CASES, EVERYWHERE, MUCH_ADDRESS_SPACE, OTHERS
from programs.place import (Failed, NOBODY, Place, Skipped, SOURCES, adopt_orphans, end_children,
                            left_running)

# Seconds that a program's command may take.
PATIENCE, PATIENCE_LONG, PATIENCE_SELF_TEST = 60, 300, 10
SCALE_LONG = 4
ADDRESS_LIMIT = 3 << 30
# Limit of a small cgroup: the program's peak without a limit times ROOM, and ROOM_KIB more, because
# an allocator for many threads keeps a few more huge pages, even for a small program.
ROOM, ROOM_KIB = 1.25, 8 << 10
# The peak of a program with threads depends on which of them run at once. The greatest of so many
# measurements counts.
PEAKS = 3
# Programs for a small cgroup: they take memory, free it and take it again.
GROUPED = ["threads", "python", "redis"]


@dataclasses.dataclass(frozen=True)
class Circumstance:
    name: str
    options: str = ""
    uid: int | None = None
    prefix: tuple = ()
    address_limit: int | None = None
    small_group: bool = False
    group: Group | None = None


def circumstances(folder):
    """Returns the circumstances that this machine allows. Prints why others are skipped."""
    every = [Circumstance("plain"), Circumstance("thread=off", options="thread=off"),
             Circumstance("huge=off", options="huge=off"),
             Circumstance("pages=off", options="pages=off"),
             Circumstance("few addresses", address_limit=ADDRESS_LIMIT)]
    if os.geteuid() == 0:
        every.append(Circumstance("another user", uid=NOBODY))
    else:
        print("skipped: in circumstance: another user (the caller is not root)")
    try:
        with Group("programs"):
            every.append(Circumstance("small group", small_group=True))
    except OSError as why:
        print(f"skipped: in circumstance: small group (no memory cgroup can be made: {why})")
    if shutil.which("cc"):
        denied = folder / "denied"
        build("denied.c", denied)
        every += [Circumstance("calls denied", prefix=(str(denied), "EPERM")),
                  Circumstance("calls missing", prefix=(str(denied), "ENOSYS"))]
        hides = subprocess.run([denied, "--hides"], stderr=subprocess.PIPE, text=True)
        if hides.returncode:
            print(f"skipped: a part of circumstance: calls denied ({hides.stderr.strip()})")
    else:
        print("skipped: in circumstance: calls denied (no C compiler: apt-get install gcc)")
    return every


def build(source, to, *options):
    subprocess.run(["cc", "-O1", "-Wall", "-o", to, *options, SOURCES / source], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", help="the library to preload")
    parser.add_argument("--long", action="store_true", help="every program in every circumstance")
    parser.add_argument("--only", action="append", metavar="PROGRAM", help=", ".join(CASES))
    parser.add_argument("--in", action="append", dest="circumstances", metavar="CIRCUMSTANCE",
                        help="only there; all programs that were named, or that it has")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.only or []) - set(CASES):
        parser.error(f"no program is called {unknown.pop()}")
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="glebe-programs-") as folder:
        folder = pathlib.Path(folder)
        # Other users need to pass through the folder.
        folder.chmod(0o755)
        if args.self_test:
            return self_test(folder)
        if not args.lib or not os.path.exists(args.lib):
            parser.error(f"--lib {args.lib}: not there; cargo build -p glebe-preload")
        # Copies the library to a place where every user can read it.
        library = pathlib.Path(shutil.copy(args.lib, folder))
        library.chmod(0o755)
        return 1 if run_all(args, folder, library) else 0


def run_all(args, folder, library):
    runs = Runs(folder, SCALE_LONG if args.long else 1, PATIENCE_LONG if args.long else PATIENCE)
    every = circumstances(folder)
    if args.circumstances:
        every = [one for one in every if one.name in args.circumstances]
    failed = 0
    for name in args.only or CASES:
        for circumstance in every:
            if wanted(name, circumstance, args):
                failed += not runs.report(name, circumstance, library)
    return failed


def wanted(name, circumstance, args):
    if name in MUCH_ADDRESS_SPACE and circumstance.address_limit:
        return False
    if circumstance.small_group and name not in GROUPED:
        return False
    return args.long or args.circumstances or circumstance.name == "plain" or name in EVERYWHERE \
        or circumstance.small_group and name in GROUPED


class Runs:
    """Runs programs. Keeps each program's result without another malloc, and its peak."""

    def __init__(self, folder, scale, patience):
        self.folder, self.scale, self.patience = folder, scale, patience
        self.bare, self.peaks_kib = {}, {}

    def report(self, name, circumstance, library):
        """Runs and compares a program, and prints a line. Returns true if all was well."""
        begin, good = time.monotonic(), True
        if name in OTHERS and os.geteuid() == 0 and circumstance.uid is None:
            circumstance = dataclasses.replace(circumstance, uid=OTHERS[name])
        try:
            found = self.compare(name, circumstance, library)
        except Skipped as why:
            print(f"skipped: {name}, {circumstance.name} ({why})", flush=True)
            return True
        except Failed as why:
            found, good = f"FAILED: {why}", False
        seconds = time.monotonic() - begin
        print(f"{name:<9} {circumstance.name:<14} {seconds:>6.1f} s  {found}", flush=True)
        return good

    def compare(self, name, circumstance, library):
        expected = self.without(name, circumstance)
        with contextlib.ExitStack() as open_now:
            if circumstance.small_group:
                limit_kib = int(self.peak_kib(name) * ROOM) + ROOM_KIB
                group = open_now.enter_context(Group("programs", limit_kib))
                open_now.callback(end_children)
                circumstance = dataclasses.replace(circumstance, group=group)
            begin = time.monotonic()
            try:
                found = self.once(name, circumstance, library)
            except Failed as why:
                killed = circumstance.group.killed() if circumstance.group else 0
                raise Failed(f"{f'{killed} killed for memory, ' if killed else ''}{why}") from None
            seconds = time.monotonic() - begin
        for what, text in expected.items():
            if text != found[what]:
                lines = difflib.unified_diff(text.splitlines(), found[what].splitlines(),
                                             "without", "with", lineterm="", n=1)
                raise Failed(f"{what} differs:\n" + "\n".join(list(lines)[:40]))
        limit = f", of {limit_kib >> 10} MiB" if circumstance.small_group else ""
        return f"the same, in {seconds:.1f} s{limit}"

    def without(self, name, circumstance):
        """Returns the program's result without the library, which is equal for all of a user's
        circumstances."""
        key = name, circumstance.uid
        if key not in self.bare:
            plain = Circumstance("without", uid=circumstance.uid)
            try:
                self.bare[key] = self.once(name, plain, None)
            except Failed as why:
                raise Failed(f"without another malloc: {why}") from None
        return self.bare[key]

    def peak_kib(self, name):
        if name not in self.peaks_kib:
            self.peaks_kib[name] = max(self.one_peak_kib(name) for _ in range(PEAKS))
        return self.peaks_kib[name]

    def one_peak_kib(self, name):
        with Group("programs") as group:
            self.once(name, Circumstance("without", group=group), None)
            return group.peak_kib()

    def once(self, name, circumstance, library):
        place = Place(self.folder / "place", library, circumstance, self.scale, self.patience)
        with place:
            said = CASES[name](place)
            if left := left_running():
                raise Failed(f"left running: {left}")
            return place.found(said)


# For each fault: the words that must report it (None: no report), and a program that notices it.
FAULTS = {
    "NONE": (None, "threads"),
    "FORGETS": ("realloc has lost", "threads"),
    "SMEARS": ("", "python"),
    "LEAVES": ("calloc gave no zeros", "threads"),
    "TALKS": ("its errors differs", "perl"),
    "STAYS": ("left running", "sort"),
    "HANGS": ("over ", "perl"),
}


def self_test(folder):
    """Checks that every fault is noticed, and that no fault is seen where there is none."""
    runs, unseen = Runs(folder, 1, PATIENCE_SELF_TEST), 0
    for fault, (expected, name) in FAULTS.items():
        library = folder / f"{fault}.so"
        build("broken.c", library, "-shared", "-fPIC", f"-DFAULT={fault}")
        try:
            found, seen = runs.compare(name, Circumstance("plain"), library), expected is None
        except Failed as why:
            found, seen = str(why), expected is not None and expected in str(why)
        unseen += not seen
        first = found.splitlines()[0][:60]
        print(f"{fault:<9} {'seen' if seen else 'NOT SEEN':<9} {name}: {first}", flush=True)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
