"""Reads Markdown pages: links, anchors, and fenced blocks, with the line of each."""

import pathlib
import re
import subprocess
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FENCE = re.compile(r"^ {0,3}```(.*)$")
INLINE = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?:\s+\"([^\"]*)\")?\)")
DEFINITION = re.compile(r"^\[[^\]]+\]:\s+(\S+)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")


class Link(NamedTuple):
    """A link: its line, its target, its words, and the title in quotes, or ""."""

    line: int
    target: str
    words: str
    title: str


class Block(NamedTuple):
    """A fenced block: the line of its fence, its kind, and its text. `note` is the text of an HTML
    comment on the line before, or ""."""

    line: int
    kind: str
    text: str
    note: str


def tracked(*patterns):
    """Returns the files that git knows, or would add, and that match a pattern."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = sorted(set(out.split("\0")) - {""})
    return [ROOT / name for name in names if (ROOT / name).exists()]


def prose_lines(text):
    """Yields (number, line) of the lines outside of fenced blocks."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def links(text):
    """Yields the links of a page. Code spans have none."""
    for number, line in prose_lines(text):
        if found := DEFINITION.match(line):
            yield Link(number, found[1], "", "")
            continue
        plain = re.sub(r"`[^`]*`", lambda code: "\0" * len(code[0]), line)
        for found in INLINE.finditer(plain):
            words = line[found.start() : found.end()].rpartition("](")[0].lstrip("!")[1:]
            yield Link(number, found[1], words, found[2] or "")


def slug(heading):
    """Returns the anchor that GitHub and mdBook make of a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    kept = (char for char in words.strip().lower() if char.isalnum() or char in "_- ")
    return "".join(kept).replace(" ", "-")


def anchors(text):
    """Returns the anchors of a page. A repeated heading gets a number, as on GitHub."""
    seen, found = {}, set()
    for _, line in prose_lines(text):
        if heading := HEADING.match(line):
            name = slug(heading[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def blocks(text):
    """Yields the fenced blocks of a page."""
    opened, before = None, ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            note = re.fullmatch(r"<!--\s*(.*?)\s*-->", before.strip())
            opened = (number, fence[1].strip(), [], note[1] if note else "")
        elif fence:
            start, kind, lines, note = opened
            yield Block(start, kind, "".join(f"{line}\n" for line in lines), note)
            opened = None
        elif opened is not None:
            opened[2].append(line)
        before = line if line.strip() else before
