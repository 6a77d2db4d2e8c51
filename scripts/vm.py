#!/usr/bin/env python3
"""Runs test programs under other kernels, page sizes and nodes: in guests of QEMU, without KVM.

Usage: vm.py [--all] [--list] [--at-hand] [--only TEXT ...] [MACHINE ...]
  --all        every machine of scripts/vm.toml; without it those that are `short`
  --list       print the names of the machines, and run nothing
  --at-hand    fetch no package, and build only what `make test` builds, with its features
  --only TEXT  only the test programs with TEXT in their name; several may be given
  MACHINE      only these machines

The kernels are Debian's, from the mirror of this machine's apt, and stay in the folder vm below the
target folder. Nothing is installed. A machine is skipped, with the reason, if its emulator, kernel
or compiler cannot be had. Needs Rust, Python 3.11, a C compiler and readelf.
"""

import argparse
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.dont_write_bytecode = True

from machines import guest, image, packages, programs, table
from testing import build, plan, report

ROOT = pathlib.Path(__file__).resolve().parent.parent


def chosen(asked):
    machines = table.machines()
    if unknown := set(asked.names) - {machine.name for machine in machines}:
        raise build.Failed(f"no such machine: {', '.join(sorted(unknown))}")
    if asked.names:
        return [machine for machine in machines if machine.name in asked.names]
    return [machine for machine in machines if asked.all or machine.short]


def prepare(machine, tests, archive, at_hand):
    """Writes the archive of a machine. Returns the folder of its kernel. Raises table.Skipped."""
    guest.emulator_of(machine.architecture)
    compiler = programs.compiler_of(machine.architecture)
    debian = packages.Archive(machine.suite, machine.architecture, at_hand)
    kernel = debian.unpack(machine.kernel)
    busybox = next(debian.unpack("busybox-static").rglob("busybox"))
    built = programs.of(machine.architecture, list(tests), at_hand)
    if machine.architecture == programs.NATIVE:
        compare(built, tests)
    libraries = programs.libraries(built.values(), compiler)
    text = guest.commands(machine, built, tests)
    image.write(archive, machine, kernel, busybox, built, libraries, text)
    return kernel


def compare(built, tests):
    """Raises build.Failed if the list names modules that a program does not have."""
    for name, modules in tests.items():
        there = [test for tests in plan.modules_of(built[name]).values() for test in tests]
        for module in [] if modules is True else modules:
            if not any(f"::{module.removeprefix('!')}::" in f"::{test}" for test in there):
                raise build.Failed(f"{table.TESTS}: {name} has no module {module} (vm)")


def tell(done, machine):
    mark = "ok    " if done.is_ok else "FAILED"
    skipped = len(re.findall("skipped: ", done.output))
    counts = f"{done.passed:4} passed {done.failed:3} failed {skipped:3} skipped"
    print(f"{mark} {done.wall:6.1f} s {counts}  {machine.name}: {done.name}", flush=True)
    if not done.is_ok:
        print(done.output, end="")
        print(f"-- {machine.name}: {done.name}: status {done.status}", flush=True)


def differences(machine, line):
    """Returns what the row of a machine says, but the first line of its guest does not."""
    wanted = [f"pages of {machine.page_kib} KiB", f"{machine.nodes} nodes"]
    missing = [text for text in wanted if f"{text}," not in line]
    return missing + ["swap"] * (machine.swap_mib > 0 and " 0 KiB of swap" in line)


def run(machine, tests, archive, at_hand):
    """Boots a machine. Returns the results of its runs. Raises table.Skipped or build.Failed."""
    kernel = prepare(machine, tests, archive, at_hand)
    results, outside, wrong = [], [], []

    def hear(line):
        outside.append(line)
        if line.startswith("vm: Linux"):
            print(f"{machine.name}: {line.removeprefix('vm: ')}", flush=True)
            wrong.extend(differences(machine, line))

    for done in guest.boot(machine, kernel, archive, hear):
        tell(done, machine)
        done.name = f"{machine.name}: {done.name}"
        results.append(done)
    if "vm: over" not in outside:
        print(*outside[-20:], sep="\n")
        raise build.Failed(f"{machine.name}: the guest did not finish")
    if wrong:
        raise build.Failed(f"{machine.name}: the guest has no {', no '.join(wrong)}")
    if len(results) != len(tests):
        raise build.Failed(f"{machine.name}: {len(results)} of {len(tests)} programs ran")
    return results


def all_of(machines, tests, at_hand):
    """Runs the machines one by one. Returns the exit status."""
    results, failures = [], []
    with tempfile.TemporaryDirectory(prefix="glebe-vm-") as folder:
        for machine in machines:
            try:
                results += run(machine, tests, os.path.join(folder, "archive"), at_hand)
            except table.Skipped as why:
                print(f"skipped: {machine.name} ({why})", flush=True)
            except build.Failed as error:
                failures.append(error)
                print(f"error: {error}", file=sys.stderr)
    status = report.print_all([], results) if results else 0
    return 1 if failures else status


def main():
    parser = argparse.ArgumentParser(description="Runs test programs in guests of QEMU.")
    parser.add_argument("--all", action="store_true", help="every machine")
    parser.add_argument("--list", action="store_true", help="print the names of the machines")
    parser.add_argument("--at-hand", action="store_true", help="fetch no package, build no more")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only programs so named")
    parser.add_argument("names", nargs="*", metavar="MACHINE", help="only these machines")
    asked = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        machines = chosen(asked)
        if asked.list:
            print(*(machine.name for machine in machines), sep="\n")
            return 0
        return all_of(machines, table.tests(asked.only or [""]), asked.at_hand)
    except build.Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
