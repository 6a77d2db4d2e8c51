#!/usr/bin/env python3
"""Writes LICENSES-THIRD-PARTY: the licences of the code of others that the built files contain.

Usage: licences.py           write the file
       licences.py --check   exit with 1 if it is not what this script would write

The Rust packages are those that cargo links into the command, the C and Python libraries and the
preloads; their texts, also those of the C code in them, come from the sources that cargo fetched.
Equal texts stand once. The Apache License is left out: LICENSE-APACHE has it.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = ROOT / "LICENSES-THIRD-PARTY"
LINKED = ["glebe-cli", "glebe-c", "glebe-preload", "glebe-huge", "glebe-python"]
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
NAME = re.compile(r"(un)?licen[cs]e|copying|notice", re.IGNORECASE)
# zstd may be used under either of two licences; LICENSE-APACHE has the other text.
NOT_OURS = re.compile(r"GNU GENERAL PUBLIC LICENSE|Apache License\s+Version 2\.0")
HEAD = """The programs and libraries of glebe contain code of the packages below, under the licences
that follow. Where a package has several licences to choose from, and the Apache License 2.0 is one
of them, its text is in LICENSE-APACHE. They also contain Rust's standard library (The Rust Project
Developers, MIT or Apache-2.0).
"""


LINUX = [word for target in TARGETS for word in ("--filter-platform", target)]


def cargo(*words):
    words = ["cargo", *words, "--offline"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def linked():
    """Returns (name, version) of the packages of others that the built files contain."""
    wanted = [word for name in LINKED for word in ("-p", name)]
    wanted += [word for target in TARGETS for word in ("--target", target)]
    text = cargo("tree", "-e", "normal,no-proc-macro", "--prefix", "none", *wanted)
    return set(re.findall(r"^(\S+) v(\S+)(?: \(\*\))?$", text, re.MULTILINE))


def texts(folder):
    """Yields the licences in the sources of a package."""
    for file in sorted(folder.rglob("*")):
        if NAME.match(file.name) and file.is_file() and "test" not in str(file.relative_to(folder)):
            text = file.read_text(errors="replace").replace("\r\n", "\n").strip()
            if text and not NOT_OURS.search(text):
                yield "\n".join(line.rstrip() for line in text.splitlines())


def written():
    packages = json.loads(cargo("metadata", "--format-version", "1", *LINUX))["packages"]
    wanted, rows, users = linked(), [], {}
    for package in sorted(packages, key=lambda package: (package["name"], package["version"])):
        name = f"{package['name']} {package['version']}"
        if (package["name"], package["version"]) in wanted:
            rows.append(f"{name}: {package['license']}")
            for text in dict.fromkeys(texts(pathlib.Path(package["manifest_path"]).parent)):
                users.setdefault(text, []).append(name)
    parts = [HEAD, *(f"- {row}\n" for row in rows)]
    for text, names in users.items():
        parts.append(f"\n{'-' * 80}\n{', '.join(names)}\n\n{text}\n")
    return "".join(parts)


def main():
    text = written()
    if sys.argv[1:] != ["--check"]:
        FILE.write_text(text)
    elif not FILE.exists() or FILE.read_text() != text:
        print(f"error: {FILE.name} is not up to date: run scripts/licences.py")
        return 1
    print(f"{FILE.name}: {text.count(chr(10) + '- ')} packages, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
