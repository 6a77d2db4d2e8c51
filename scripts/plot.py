#!/usr/bin/env python3
"""Draws figures as SVG: of one file to standard output, or the pictures that are kept.

Usage: plot.py FILE.json >FILE.svg   of `glebe demo --json` or `glebe-bench reserve --json`
       plot.py --pictures            writes docs/pictures from bench/results
       plot.py --check               says which pictures differ from these results; then exits with 1
"""

import json
import sys

sys.dont_write_bytecode = True

from pictures import blocks, kept


def main():
    if sys.argv[1:] == ["--pictures"]:
        kept.write()
    elif sys.argv[1:] == ["--check"]:
        differing = kept.differing()
        for file in differing:
            print(f"error: {file.relative_to(kept.ROOT)} is not what scripts/plot.py --pictures draws")
        print(f"pictures: {len(kept.PICTURES)}, {len(differing)} errors")
        return 1 if differing else 0
    elif len(sys.argv) == 2:
        with open(sys.argv[1]) as file:
            print(blocks.picture(json.load(file)))
    else:
        print(__doc__.strip().partition("\n\n")[2], file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
