#!/usr/bin/env python3
"""Prints what a reader wants of a run of all tests: the reasons for which tests were skipped, the
stages and test programs that took longest and, last, what failed with the first lines of why.

Usage: test_report.py LOG. In the log `== NAME` begins a stage and `== NAME: ok, N s` or `== NAME:
failed, N s` ends it; `-- PROGRAM` begins a test program that cargo did not start. The rest is what
cargo and the tests print.
"""

import re
import sys
from collections import Counter

SLOWEST = 10
PANIC_LINES = 3
ERROR_LINES = 2

PROGRAM = re.compile(r"\s*Running .*\((?:.*/)?(.+)-[0-9a-f]+\)|-- (.+)-[0-9a-f]+$|\s*Doc-tests (.+)")
# What fails and is no test of Rust's: compilers and Python's tests, programs that were killed.
ERROR = re.compile(r"error(\[E\d+\])?: (?!test failed|doctest failed|could not compile|\d+ target)|FAIL: |ERROR: ")
KILLED = re.compile(r"\s*process didn't exit successfully.*\(signal: ")


def first_panic(lines, begin):
    """Returns the first lines of the first panic in a test's output, which begins at a line."""
    for at in range(begin, len(lines)):
        if " panicked at " in lines[at]:
            return lines[at : at + PANIC_LINES]
        if lines[at].startswith(("---- ", "test result: ")):
            break
    return []


def read(lines):
    """Returns the skips, pairs of seconds and what took them, the stages that failed and what failed
    in them, each as lines."""
    stage, program = "", ""
    skips, took, stages, failures = Counter(), [], [], {}
    for at, line in enumerate(lines):
        if found := re.match(r"== (.+): (ok|failed), (\d+) s$", line):
            took.append((float(found[3]), f"all of {found[1]}"))
            if found[2] == "failed":
                stages.append(found[1])
        elif found := re.match(r"== (.+)", line):
            stage, program = found[1], ""
        elif found := PROGRAM.match(line):
            program = next(group for group in found.groups() if group)
        elif found := re.match(r"test result: .* finished in ([0-9.]+)s", line):
            took.append((float(found[1]), f"{program} ({stage})"))
        elif found := re.match(r"test (.+?)(?: - should panic)? \.\.\. FAILED", line):
            title = f"{found[1]}, of {program} ({stage})"
            failures[stage, program, found[1]] = [title]
        elif found := re.match(r"---- (.+) stdout ----$", line):
            if (failure := failures.get((stage, program, found[1]))) and len(failure) == 1:
                failure.extend(first_panic(lines, at + 1))
        elif ERROR.match(line) and not program:
            failures[stage, "", at] = [stage, *lines[at : at + ERROR_LINES]]
        elif KILLED.match(line):
            failures[stage, program, at] = [f"{program} ({stage})", line]
        if found := re.search(r"skipped: .*", line):
            skips[found[0]] += 1
    return skips, took, stages, failures.values()


def main():
    with open(sys.argv[1], errors="replace") as log:
        skips, took, stages, failures = read(log.read().splitlines())
    print("== skipped")
    for reason, count in sorted(skips.items()):
        print(f"{count:7} {reason}")
    print(f"skips: {sum(skips.values())}")
    print("== the slowest")
    for seconds, name in sorted(took, reverse=True)[:SLOWEST]:
        print(f"{seconds:.0f} s: {name}")
    if stages:
        print("== failed", *stages, sep="\nstage: ")
    for title, *why in failures:
        print(title, *(f"    {line}" for line in why), sep="\n")


if __name__ == "__main__":
    main()
