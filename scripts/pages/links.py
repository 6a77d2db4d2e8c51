"""Checks that each link leads to a file and a heading, and that the book has each page."""

import re

from . import markdown
from .markdown import ROOT

SUMMARY = ROOT / "docs" / "SUMMARY.md"
OUTSIDE = re.compile(r"^(?:https?|mailto):")


def findings(pages):
    """Yields (page, line, text) for each link that leads nowhere."""
    texts = {page: page.read_text() for page in pages}
    for page, text in texts.items():
        for link in markdown.links(text):
            if not OUTSIDE.match(link.target):
                if wrong := broken(page, link.target, texts):
                    yield page, link.line, wrong


def broken(page, target, texts):
    """Returns what is wrong with a relative link, or None."""
    name, _, anchor = target.partition("#")
    # Links of a page that is a link itself start where it points.
    file = (page.resolve().parent / name).resolve() if name else page.resolve()
    if not file.is_relative_to(ROOT):
        return f"{target} leads out of the repository"
    if not file.exists():
        return f"{target} leads to no file"
    if anchor and file.suffix == ".md":
        if anchor not in markdown.anchors(texts.get(file) or file.read_text()):
            return f"{target}: the page has no such heading"
    return None


def chapters(text):
    """Returns the pages that a summary lists, in their order, relative to its folder."""
    return [link.target for link in markdown.links(text)]


def outside_of_the_book(pages, listed):
    """Yields (page, line, text) for each page below docs/ that is not one of `listed`."""
    names = [name for name in listed]
    for name in {name for name in names if names.count(name) > 1}:
        yield SUMMARY, 1, f"{name} is listed twice"
    for page in pages:
        if page.is_relative_to(SUMMARY.parent) and page != SUMMARY:
            if page.relative_to(SUMMARY.parent).as_posix() not in names:
                yield page, 1, "docs/SUMMARY.md does not list this page"
