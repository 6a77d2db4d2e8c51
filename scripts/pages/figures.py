"""Compares figures in the pages with the results that they cite.

A figure is a link to a file in bench/results, whose title names the row: "CASE; WHO; UNIT", with
"; STATISTIC" if that is not the median, or "ratio; NAME". The number must be the row's, rounded to
the digits that the page shows.
"""

import json
import re

from . import markdown

NUMBER = re.compile(r"([\d,]*\.?\d+)(?:\s*(ns|µs|ms|s|%|B|KiB|MiB|GiB)\b|\s*(%))?")
# The value of each unit in the smallest unit of its kind.
SCALES = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0,
    "B": 1.0, "bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    "percent": 1.0, "%": 1.0, "share": 1.0,
}


def findings(pages):
    """Yields (page, line, text) for each figure that its file does not have."""
    for page in pages:
        for link in markdown.links(page.read_text()):
            if link.title and "bench/results/" in link.target:
                file = (page.parent / link.target).resolve()
                if file.exists() and (wrong := differs(link, json.loads(file.read_text()))):
                    yield page, link.line, wrong


def differs(link, results):
    """Returns what is wrong with a figure, or None."""
    value, unit = wanted(link.title, results)
    if value is None:
        return f"no single row {link.title!r} in {link.target}"
    found = NUMBER.search(link.words)
    if not found:
        return f"{link.words!r} has no number"
    shown, step = read(found[1])
    own = found[2] or found[3]
    scale = SCALES[own] / SCALES.get(re.split("[ /]", unit)[0], 1.0) if own else 1.0
    # Half of the last digit, and a little for numbers that floats do not hold exactly.
    if abs(shown * scale - value) > 0.501 * step * scale:
        return f"{link.words!r}, but {link.title!r} is {value:.6g} {unit}"
    return None


def read(text):
    """Returns a number and the value of its last digit; zeros at the end of whole thousands do not
    count as digits."""
    plain = text.replace(",", "")
    if "." in plain:
        return float(plain), 10.0 ** -len(plain.partition(".")[2])
    zeros = len(plain) - len(plain.rstrip("0")) if len(plain) > 3 else 0
    return float(plain), 10.0**zeros


def wanted(title, results):
    """Returns the value and the unit of the row that a title names, or None and ""."""
    parts = [part.strip() for part in title.split(";")]
    if parts[0] == "ratio":
        return results.get("ratios", {}).get(parts[-1]), ""
    case, who, unit, *rest = parts + [""] * (3 - len(parts))
    rows = [row for row in results["rows"] if (row["case"], row["who"], row["unit"]) == (case, who, unit)]
    values = {row.get(rest[0] if rest else "median") for row in rows}
    return (values.pop(), unit) if len(values) == 1 else (None, "")
