#!/usr/bin/env python3
"""Does what the pages for newcomers say: runs their commands in order, each page in a new folder.

Usage: newcomer.py [--glebe target/debug/glebe] [--python target/python/bin/python3] [NAME ...]
       newcomer.py --self-test

The pages are in docs/start. scripts/pages/newcomer.py says which blocks run. PATH has the built
command as `glebe`; its libraries must be in the same folder. --python names an interpreter that has
the package glebe (`make python` makes one). NAME runs only pages with this in their name. Prints a
line for each page, and `skipped:` with the reason for each block that cannot run here. Exits with 1
if a command failed.
"""

import argparse
import pathlib
import socket
import sys
import time

sys.dont_write_bytecode = True

from pages import newcomer
from pages.markdown import ROOT

PAGES = ROOT / "docs" / "start"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(name, text, glebe, python):
    """Runs a page and says how it went. Returns true if it failed."""
    place, begin = newcomer.Place(glebe, python, free_port()), time.monotonic()
    try:
        ran, skipped = newcomer.page(text, place)
    except newcomer.Failed as why:
        print(f"error: {name}, {why}")
        place.give_back(text)
        return True
    finally:
        place.close()
    for line, why in skipped:
        print(f"skipped: {name}:{line}: {why}")
    print(f"newcomer: {name} ok, {ran} blocks in {time.monotonic() - begin:.0f} s")
    return False


def self_test(python):
    """Checks that a page that fails is found, and that the wishes of a block count."""
    good = "```python\n# a.py\nprint(6 * 7)\n```\n<!-- newcomer: prints 42 -->\n```sh\npython3 a.py\n```\n"
    cases = [
        ("a page", good, False),
        ("a command that fails", "```sh\nfalse\ntrue\n```\n", True),
        ("an expected status", "<!-- newcomer: status 3 -->\n```sh\nsh -c 'exit 3'\n```\n```sh\ntrue\n```\n", False),
        ("another status", "<!-- newcomer: status 3 -->\n```sh\nsh -c 'exit 4'\n```\n", True),
        ("words that are not printed", "<!-- newcomer: prints b -->\n```sh\necho a\n```\n", True),
        ("variables and jobs stay", "```sh\na=1; sleep 9 & echo x\n```\n```sh\ntest $a = 1; kill %1\n```\n", False),
        ("a skipped block", "<!-- newcomer: skip, why -->\n```sh\nfalse\n```\n", False),
        ("a missing command", "<!-- newcomer: needs no-such-command -->\n```sh\nfalse\n```\n", False),
        ("text is not run", "```text\n$ false\n```\n", False),
        ("a misspelt wish", "<!-- newcomer: print 1 -->\n```sh\necho 1\n```\n", True),
    ]
    wrong = [name for name, text, fails in cases if run(f"self-test, {name}", text, "/bin/false", python) != fails]
    for name in wrong:
        print(f"self-test: {name}")
    print(f"newcomer: self-test, {len(cases)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description="Runs the commands of the pages for newcomers.")
    parser.add_argument("--glebe", default="target/debug/glebe", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable, type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true", help="check the checks")
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only pages with such a name")
    asked = parser.parse_args()
    # Not resolved: an environment's interpreter is a link.
    glebe, python = asked.glebe.absolute(), asked.python.absolute()
    if asked.self_test:
        return self_test(python)
    if not glebe.exists():
        print(f"error: no {glebe}; --glebe names the built command", file=sys.stderr)
        return 1
    pages = [page for page in sorted(PAGES.glob("*.md")) if any(n in page.stem for n in asked.names or [""])]
    if not pages:
        print(f"error: no page in {PAGES} has one of these names: {asked.names}", file=sys.stderr)
        return 1
    failed = [run(page.relative_to(ROOT).as_posix(), page.read_text(), glebe, python) for page in pages]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
