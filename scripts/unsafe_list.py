#!/usr/bin/env python3
"""Checks that docs/internals/unsafe.md lists exactly the source files with unsafe code.

The list is the first fenced block under the heading "Files with unsafe code", with one path per
line, from the root of the repository, and text for the reader after it. It leaves out test files
(`tests.rs` and folders named `tests` or `models`). Exits with 1 on any difference.
"""

import pathlib
import re
import sys

HEADING = re.compile(r"^#+\s+Files with unsafe code\s*$", re.MULTILINE)
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
ALLOWS = re.compile(r"^\s*#!?\[allow\([^)]*\bunsafe_code\b", re.MULTILINE)


def listed(design):
    """Returns the paths in the document, or None if the heading or the list is missing."""
    heading = HEADING.search(design)
    if not heading:
        return None
    section = re.split(r"^#+\s", design[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    fence = FENCE.search(section)
    return {line.split()[0] for line in fence[1].splitlines() if line.strip()} if fence else None


def found(root):
    paths = set()
    for file in [*root.glob("crates/*/src/**/*.rs"), *root.glob("bench/src/**/*.rs")]:
        path = file.relative_to(root)
        is_test = file.name == "tests.rs" or not {"tests", "models"}.isdisjoint(path.parts)
        if not is_test and ALLOWS.search(file.read_text()):
            paths.add(path.as_posix())
    return paths


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    design = root / "docs" / "internals" / "unsafe.md"
    said = listed(design.read_text()) if design.exists() else None
    if said is None:
        print("error: docs/internals/unsafe.md has no list under a heading 'Files with unsafe code'")
        return 1
    real = found(root)
    for path in sorted(real - said):
        print(f"error: {path}: allows unsafe code, but docs/internals/unsafe.md does not list it")
    for path in sorted(said - real):
        print(f"error: docs/internals/unsafe.md lists {path}, which allows no unsafe code")
    print(f"unsafe: {len(real)} files with unsafe code, {len(said)} listed")
    return 1 if real != said else 0


if __name__ == "__main__":
    sys.exit(main())
