#!/usr/bin/env python3
"""Checks the documentation: its links, its book, its figures, its messages and its commands.

Usage: docs.py [--glebe target/debug/glebe] | --book target/book | --self-test | --preprocess ...
  --glebe       also check that each `glebe` command and option in the pages exists
  --book        check the links of the built book instead
  --preprocess  what book.toml names; see scripts/pages/book.py

Every Markdown file of the repository is read. Each link must lead to a file, and to a heading if it
names one. docs/SUMMARY.md must list each page below docs/. A figure that cites bench/results must
be the one there. docs/troubleshooting.md explains messages that the sources have. Prints a line for
each finding, and exits with 1 if there is any.
"""

import argparse
import pathlib
import sys

sys.dont_write_bytecode = True

from pages import book, commands, figures, links, markdown, texts
from pages.markdown import ROOT

# Pages whose commands are not this command's: older ones, and others' programs.
NO_COMMANDS = ("CHANGELOG.md", "bench/results/README.md")


def check(glebe):
    pages = markdown.tracked("*.md")
    sources = markdown.tracked("crates/*/src/*.rs", "crates/*/src/**/*.rs", "crates/glebe-python/*.py")
    found = list(links.findings(pages))
    found += links.outside_of_the_book(pages, links.chapters(links.SUMMARY.read_text()))
    found += figures.findings(pages)
    found += texts.findings(sources)
    if glebe:
        named = [page for page in pages if page.relative_to(ROOT).as_posix() not in NO_COMMANDS]
        found += commands.findings(named, glebe)
    for page, line, text in found:
        print(f"error: {page.relative_to(ROOT)}:{line}: {text}")
    left = "" if glebe else ", skipped: commands and options (no --glebe)"
    print(f"docs: {len(pages)} pages, {len(found)} errors{left}")
    return 1 if found else 0


def check_book(folder):
    found = list(book.findings(folder))
    for page, text in found:
        print(f"error: {page}: {text}")
    print(f"docs: the book in {folder}, {len(found)} errors")
    return 1 if found else 0


def self_test():
    """Checks that each check finds what it is for, and passes what is right."""
    page = links.SUMMARY.parent / "python.md"
    row = {"case": "c", "who": "w", "unit": "us cpu", "median": 5.0974}
    results = {"rows": [row], "ratios": {"r": 1.44}}
    figure = lambda words, title: figures.differs(markdown.Link(1, "x", words, title), results) is None
    calls = lambda text: [words for _, words in commands.calls(text)]
    cases = [
        ("a link to a file", links.broken(page, "../README.md", {}) is None, True),
        ("a link to none", links.broken(page, "none.md", {}) is None, False),
        ("a heading", links.broken(page, "#a-b", {page: "# A `b`!\n"}) is None, True),
        ("no heading", links.broken(page, "#c", {page: "# A b\n```\n# c\n```\n"}) is None, False),
        ("a link out", links.broken(page, "../../x", {}) is None, False),
        ("the second of a name", "a-1" in markdown.anchors("# A\n# A\n"), True),
        ("a link in code", list(markdown.links("`[a](b)`")) == [], True),
        ("an unlisted page", list(links.outside_of_the_book([page], [])) == [], False),
        ("a listed page", list(links.outside_of_the_book([page], ["python.md"])) == [], True),
        ("a page listed twice", list(links.outside_of_the_book([], ["a.md", "a.md"])) == [], False),
        ("a figure", figure("5.1 µs", "c; w; us cpu"), True),
        ("a figure in another unit", figure("5,097 ns", "c; w; us cpu"), True),
        ("a figure rounded to thousands", figures.read("231,000") == (231000.0, 1000.0), True),
        ("another figure", figure("5.2 µs", "c; w; us cpu"), False),
        ("no row", figure("5.1 µs", "c; x; us cpu"), False),
        ("a ratio", figure("1.4 times", "ratio; r"), True),
        ("a message", texts.matches("no … for …: why", "no … for …: why not"), True),
        ("another message", texts.matches("no … of …", "no … for …"), False),
        ("parts of a message", texts.strings('"a {} \\\n    b"') == ["a … b"], True),
        ("a message of others", list(texts.messages(f"{texts.FOREIGN}\n## `a`\n## `b`")) == [(3, "b")], True),
        ("a call", calls("```sh\nsudo glebe run --a -- glebe --b   # c\n```\n") == [["run", "--a"]], True),
        ("a call in a code span", calls("`glebe lease 2M`") == [["lease", "2M"]], True),
        ("a chapter's link out", book.moved("[a](../x)", "p.md", "B") == "[a](B/blob/main/x)", True),
        ("a chapter's link", book.moved("[a](b.md#c)\n[d](#e)", "p.md", "B") == "[a](b.md#c)\n[d](#e)", True),
        ("a chapter's link in a folder", book.moved("[a](../b.md)", "c/p.md", "B") == "[a](../b.md)", True),
        ("a link to a folder's page", book.moved("[a](b/README.md#c)", "p.md", "B") == "[a](b/index.md#c)", True),
        ("a chapter's code", book.moved("```\n[a](../x)\n```", "p.md", "B") == "```\n[a](../x)\n```", True),
    ]
    wrong = [name for name, got, expected in cases if got != expected]
    for name in wrong:
        print(f"self-test: {name}")
    print(f"docs: self-test, {len(cases)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description="Checks the documentation.")
    parser.add_argument("--glebe", type=pathlib.Path, help="the command, to check its options")
    parser.add_argument("--book", type=pathlib.Path, help="the built book, to check its links")
    parser.add_argument("--self-test", action="store_true", help="check the checks")
    parser.add_argument("--preprocess", nargs="*", metavar="WORD", help="what mdBook calls")
    asked = parser.parse_args()
    if asked.self_test:
        return self_test()
    if asked.preprocess is not None:
        # `supports RENDERER` asks whether the preprocessor knows a renderer: it knows each.
        if asked.preprocess[:1] != ["supports"]:
            book.preprocess()
        return 0
    if asked.book:
        return check_book(asked.book.resolve())
    return check(asked.glebe and asked.glebe.resolve())


if __name__ == "__main__":
    sys.exit(main())
