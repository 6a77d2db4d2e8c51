#!/usr/bin/env python3
"""Makes Debian packages of what is built, and tries them in Debian trees.

Usage: debian.py make FOLDER-OF-THE-BUILD OUT   makes them in OUT
       debian.py check OUT                      tries those in OUT
       debian.py newcomers OUT                  runs the pages for newcomers with those in OUT, and with
                                                the wheel there

Making needs debhelper, or root and a Debian mirror for apt. Trying needs root and a mirror: see
debs/tree.py. Prints `skipped: ` and why without them. Exits with 1 on any fault.
"""

import pathlib
import sys

sys.dont_write_bytecode = True

from machines.table import Skipped
from debs import build, checks, newcomers
from testing.build import Failed


def main():
    try:
        match sys.argv[1:]:
            case ["make", built, out]:
                print(*build.make(pathlib.Path(built), pathlib.Path(out)), sep="\n")
                return 0
            case ["check", out]:
                return checks.all_of(pathlib.Path(out))
            case ["newcomers", out]:
                return newcomers.check(pathlib.Path(out))
        print(__doc__, file=sys.stderr)
        return 2
    except Skipped as why:
        print(f"skipped: Debian packages ({why})")
        return 0
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
