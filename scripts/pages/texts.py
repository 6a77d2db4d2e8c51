"""Checks that the messages which a page explains are the program's own.

In docs/troubleshooting.md a heading in a code span is a message. `…` stands for what differs from
case to case. Every other part must be in one string of a source file, in this order.
"""

import re

from . import markdown
from .markdown import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
# Messages of other programs and of the kernel are marked on the line before.
FOREIGN = "<!-- not glebe's -->"
# The longest part of a message has at least this many characters: less is found anywhere.
PART_MIN = 4


def messages(text):
    """Yields (line, message) of the headings that are messages of glebe's."""
    before = ""
    for number, line in markdown.prose_lines(text):
        # A message with backticks is between double ones.
        found = re.fullmatch(r"#+ (?:`` (.+) ``|`([^`]+)`)", line)
        if found and before.strip() != FOREIGN:
            yield number, found[1] or found[2]
        before = line if line.strip() else before


def strings(source):
    """Returns the string literals of a Rust or Python source, with continued lines joined and `…`
    for each value that is inserted."""
    joined = re.sub(r"\\\n\s*", "", source)
    found = re.findall(r'"((?:[^"\\]|\\.)*)"', joined)
    return [re.sub(r"\{[^{}]*\}", "…", text.replace('\\"', '"')) for text in found]


def matches(message, text):
    """True if the fixed parts of `message` are in `text`, in this order. Both may have `…`."""
    at = 0
    for part in message.split("…"):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def findings(sources):
    """Yields (page, line, text) for each message that no source has."""
    texts = [text for source in sources for text in strings(source.read_text())]
    count = 0
    for line, message in messages(PAGE.read_text()):
        count += 1
        parts = message.split("…")
        if max(map(len, parts)) < PART_MIN or not any(matches(message, text) for text in texts):
            yield PAGE, line, f"no source has the message {message!r}"
    if count == 0:
        yield PAGE, 1, "the page explains no message"
