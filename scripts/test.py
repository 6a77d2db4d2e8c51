#!/usr/bin/env python3
"""Builds every test once, runs them on all processors, and reports slow, skipped and failed tests.

Usage: test.py [--long] [--benchmarks] [--list] [NAME ...]
  --long        walk whole state spaces (GLEBE_LONG=1), run `pure` modules without privileges too
  --benchmarks  build the benchmarks and test them too: a short run of each
  --list        print the names of the runs, and run nothing
  NAME          run only what has one of these words in its name

scripts/tests.toml lists the test programs. The runner fails if cargo builds other programs than
these. Each run is one process: a program, or one of its modules. A run gets a temporary folder and
must leave it empty. A test that cannot run here prints `skipped: ` and why. GLEBE_SLOW=n multiplies
every limit. Needs Rust, Python 3.11 and a C compiler.
"""

import argparse
import os
import pathlib
import shutil
import signal
import sys
import tempfile

sys.dont_write_bytecode = True

from testing import build, plan, report, work

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description="Builds and runs every test.")
    parser.add_argument("--long", action="store_true", help="walk whole state spaces")
    parser.add_argument("--benchmarks", action="store_true", help="test the benchmarks too")
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only what has such a word")
    asked = parser.parse_args()
    os.chdir(ROOT)
    # Many tests panic on purpose, and their backtraces would hide the others.
    os.environ["RUST_BACKTRACE"] = "0"
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    if os.environ.get("GLEBE_LONG") == "0":
        del os.environ["GLEBE_LONG"]
    if asked.long:
        os.environ["GLEBE_LONG"] = "1"

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The name is short, because paths of sockets have at most 107 bytes.
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="gt-"))
    scratch.chmod(0o711)
    try:
        built = build.everything(asked.benchmarks)
        runs = plan.of(built, scratch, asked.long, asked.benchmarks)
        if asked.names:
            runs = [run for run in runs if any(name in run.name for name in asked.names)]
            if not runs:
                raise build.Failed(f"no run has one of these words in its name: {asked.names}")
        if asked.list:
            print(*(run.name for run in runs), sep="\n")
            return 0
        done = work.all_of(runs, scratch)
        return report.print_all(built.seconds, done)
    except build.Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
