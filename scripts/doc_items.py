#!/usr/bin/env python3
"""Prints the number of items in the library's documentation, after `cargo doc`.

Usage: doc_items.py TARGET. Exits with 1 if there are more than ITEMS_MAX.
"""

import pathlib
import re
import sys

ITEMS_MAX = 150


def main():
    page = pathlib.Path(sys.argv[1], "doc", "glebe", "all.html").read_text()
    kinds = re.findall(r'<h3 id="([a-z]+)">.*?</h3><ul class="all-items">(.*?)</ul>', page)
    links = {kind: re.findall(r'href="([^"]+)"', items) for kind, items in kinds}
    # Several modules show the same item, such as the page size. Each of these items counts once.
    shared = {
        link.rpartition("/")[2]
        for all_links in links.values()
        for link in all_links
        if link.split("/")[0] in ("error", "extent", "units", "fn.page_size.html")
    }

    def name(link):
        parts = link.split("/")
        return parts[-1] if parts[-1] in shared else "/".join(parts[-2:])

    counts = {kind: len(set(map(name, all_links))) for kind, all_links in links.items()}
    total = sum(counts.values())
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"documented items: {total} ({told}); at most {ITEMS_MAX}")
    return 1 if total > ITEMS_MAX or not total else 0


if __name__ == "__main__":
    sys.exit(main())
