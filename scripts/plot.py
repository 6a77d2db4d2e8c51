#!/usr/bin/env python3
"""Draws the JSON of `glebe demo` or `glebe-bench reserve` as SVG, to standard output.

Usage: plot.py FILE.json >FILE.svg

The upper part, if the file has a map, shows the reserve while the program held a block, with the
holders of each granule's pages. The lower part shows, for each size of block (rows `recall_PAGES`,
in us), each contestant's fastest, median and slowest request on a logarithmic axis. The colours
suit readers with red-green blindness, and follow the viewer's dark mode.
"""

import html
import json
import math
import sys

WIDTH, MARGIN, AXIS = 900, 32, 78
COLOURS = ["#2563eb", "#d1570c", "#0f8a6a", "#8a5cc2", "#b03060", "#6b7280"]
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}.h{font-size:20px;font-weight:600}
.d{fill:#59636e}.card{fill:#fff;stroke:#d1d9e0}.free{fill:#e4e8ec}.first{fill:#2563eb}
.tenant{fill:#f2b134}.grid{stroke:#d9dee3}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.d{fill:#9198a1}
.card{fill:#0d1117;stroke:#3d444d}.free{fill:#2a313a}.grid{stroke:#2a313a}}"""


class Canvas:
    """The elements of a picture, drawn from the top down. `y` is where the next part begins."""

    def __init__(self):
        self.body, self.y = [], MARGIN

    def add(self, name, text=None, **attributes):
        words = "".join(
            f' {key.rstrip("_").replace("_", "-")}="{value:.4g}"' if isinstance(value, float)
            else f' {key.rstrip("_").replace("_", "-")}="{value}"'
            for key, value in attributes.items()
        )
        end = "/>" if text is None else f">{html.escape(text)}</{name}>"
        self.body.append(f"<{name}{words}{end}")

    def heading(self, title, subtitle):
        self.add("text", title, x=MARGIN, y=self.y + 16, class_="h")
        self.add("text", subtitle, x=MARGIN, y=self.y + 38, class_="d")
        self.y += 56

    def legend(self, entries):
        x = MARGIN
        for look, name in entries:
            self.add("rect", x=x, y=self.y, width=12, height=12, rx=3, **look)
            self.add("text", name, x=x + 18, y=self.y + 11)
            x += 40 + 7 * len(name)
        self.y += 26

    def finish(self):
        height = self.y + MARGIN
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">'
        card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
        return "\n".join([head, f"<style>{STYLE}</style>", card, *self.body, "</svg>"])


# The contestants, as a reader knows them.
NAMES = {
    "thp": "the kernel: huge pages on demand",
    "plain": "the kernel: small pages on demand",
    "hugetlb": "the kernel: a pool of huge pages",
}


def size_text(size):
    """Returns bytes in the largest unit of which there is at least one."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} B"


def time_text(us):
    for unit, scale in (("us", 1), ("ms", 1e3)):
        if us < 1000 * scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:.3g} s"


def granules(canvas, data):
    """Draws a square for each granule, divided in proportion to the pages of each holder."""
    pages = sum(map(sum, data["map"]))
    bytes_of = lambda count: size_text(round(data["len_bytes"] * count / pages))
    block, granule = sum(of[1] for of in data["map"]), sum(data["map"][0])
    canvas.heading(
        f"A block of {bytes_of(block)} took its pages from the cache",
        f"The reserve of {bytes_of(pages)} while the program held the block; "
        f"a square is {bytes_of(granule)}. The cache holds {data['files']}.",
    )
    kinds = ["first", "tenant", "free"]
    names = ["the program's block", "cached files", "free"]
    canvas.legend([({"class_": kind}, name) for kind, name in zip(kinds, names)])
    columns = 32
    step = (WIDTH - 2 * MARGIN) / columns
    rows = math.ceil(len(data["map"]) / columns)
    high = min(step, 320 / rows)
    for nth, (free, first, tenant) in enumerate(data["map"]):
        x, top = MARGIN + nth % columns * step, canvas.y + nth // columns * high
        for kind, count in zip(kinds, (first, tenant, free)):
            width = (step - 2) * count / (free + first + tenant)
            if width > 0:
                canvas.add("rect", class_=kind, x=x, y=top, width=width, height=high - 2)
            x += width
    canvas.y = round(canvas.y + rows * high + 36)


def finding(rows, size_of):
    """Returns the heading: for the largest block, glebe's median and the fastest other's."""
    largest = max(row["pages"] for row in rows)
    medians = {row["who"]: row["median"] for row in rows if row["pages"] == largest}
    own = medians.pop("glebe", None)
    if own is None or not medians:
        return "Time to get a block"
    other = min(medians.values())
    return f"A block of {size_of(largest)}: glebe {time_text(own)}, the kernel {time_text(other)}"


def latencies(canvas, rows, page_bytes):
    """Draws a group of marks for each size, with a mark for each contestant."""
    size_of = lambda pages: size_text(pages * page_bytes)
    sizes = sorted({row["pages"] for row in rows})
    who = list(dict.fromkeys(row["who"] for row in rows))
    subtitle = "Mark at the median, line from the fastest to the slowest. The kernel's memory comes zeroed."
    canvas.heading(finding(rows, size_of), subtitle)
    canvas.legend([({"fill": colour}, NAMES.get(name, name)) for colour, name in zip(COLOURS, who)])
    low = math.floor(math.log10(min(row["min"] for row in rows)))
    top = math.ceil(math.log10(max(row["max"] for row in rows)))
    high = 300
    at = lambda us: canvas.y + high * (top - math.log10(us)) / max(top - low, 1)
    for decade in range(low, top + 1):
        y = at(10.0**decade)
        canvas.add("line", class_="grid", x1=AXIS, x2=WIDTH - MARGIN, y1=y, y2=y)
        label = time_text(10.0**decade)
        canvas.add("text", label, x=AXIS - 8, y=y + 4, text_anchor="end", class_="d")
    group = (WIDTH - MARGIN - AXIS) / len(sizes)
    for row in rows:
        nth = sizes.index(row["pages"])
        x = AXIS + group * (nth + (who.index(row["who"]) + 1) / (len(who) + 1))
        colour = COLOURS[who.index(row["who"]) % len(COLOURS)]
        line = {"x1": x, "x2": x, "y1": at(row["min"]), "y2": at(row["max"])}
        canvas.add("line", stroke=colour, stroke_width=2, **line)
        canvas.add("circle", cx=x, cy=at(row["median"]), r=4, fill=colour)
    for nth, size in enumerate(sizes):
        x = AXIS + group * (nth + 0.5)
        canvas.add("text", size_of(size), x=x, y=canvas.y + high + 22, text_anchor="middle")
    canvas.y += high + 44
    canvas.add("text", "size of the block", x=WIDTH / 2, y=canvas.y, text_anchor="middle", class_="d")


def main():
    with open(sys.argv[1]) as file:
        data = json.load(file)
    wanted = lambda row: row["unit"] == "us" and row["case"].startswith("recall_") and "min" in row
    rows = [row for row in data["rows"] if wanted(row) and row["case"].split("_")[1].isdigit()]
    rows = [{**row, "pages": int(row["case"].split("_")[1])} for row in rows]
    canvas = Canvas()
    if data.get("map"):
        granules(canvas, data)
    latencies(canvas, rows, data.get("page_bytes", 4096))
    print(canvas.finish())


if __name__ == "__main__":
    main()
