"""A preprocessor of mdBook: links that leave docs/ lead to the repository instead.

On GitHub such links are relative; the built book does not have these files. mdBook writes a
context and the book as JSON to standard input, and reads the changed book.
"""

import html.parser
import json
import posixpath
import re
import sys
import tomllib

from .markdown import ROOT

TARGET = re.compile(r"(\]\(|^\[[^\]]+\]:\s+)([^()\s]+)", re.MULTILINE)
FENCED = re.compile(r"(^ {0,3}```.*?^ {0,3}```[^\n]*$)", re.MULTILINE | re.DOTALL)


def repository():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["repository"]


def moved(text, path, base):
    """Returns a chapter's text. `path` is the chapter's file below docs/."""

    def target(found):
        before, link = found.groups()
        if re.match(r"[a-z]+:|#", link):
            return found[0]
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(path), link))
        if not place.startswith("docs/"):
            return f"{before}{base}/blob/main/{place}"
        # mdBook makes index.html of a README.md, but does not change the links to it.
        return before + re.sub(r"(^|/)README\.md(?=#|$)", r"\1index.md", link)

    parts = FENCED.split(text)
    parts[::2] = [TARGET.sub(target, part) for part in parts[::2]]
    return "".join(parts)


def walk(items, base):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter.get("path"):
                chapter["content"] = moved(chapter["content"], chapter["path"], base)
            walk(chapter["sub_items"], base)


def preprocess():
    _, book = json.load(sys.stdin)
    # mdBook 0.4 has `sections`, 0.5 has `items`.
    walk(book.get("sections") or book.get("items") or [], repository())
    json.dump(book, sys.stdout)


class Anchors(html.parser.HTMLParser):
    """Collects the identifiers and the links of a page of the built book."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.ids.update(filter(None, [named.get("id"), named.get("name")]))
        target = named.get("href") or named.get("src")
        if target and not re.match(r"[a-z]+:|//", target):
            self.links.append(target)


def findings(folder):
    """Yields (page, text) for each link of the built book that leads nowhere in it."""
    pages = {page: Anchors(page.read_text()) for page in folder.rglob("*.html")}
    if not (folder / "index.html").exists():
        yield folder, "has no index.html"
    for page, read in pages.items():
        # These two have paths of the site, and links of other pages.
        if page.name in ("404.html", "print.html", "toc.html"):
            continue
        for link in read.links:
            name, _, anchor = link.partition("#")
            file = (page.parent / name).resolve() if name else page.resolve()
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                yield page, f"{link} leads to no file"
            elif anchor and file in pages and anchor not in pages[file].ids:
                yield page, f"{link}: the page has no such heading"
