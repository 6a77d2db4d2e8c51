"""Draws the JSON of `glebe demo` or `glebe-bench reserve`.

The upper part, if the file has a map, shows the reserve while the program held a block, with the
holders of each granule's pages. The lower part shows, for each size of block (rows `recall_PAGES`,
in us), each contestant's fastest, median and slowest request on a logarithmic axis.
"""

import math

from .canvas import AXIS, COLOURS, MARGIN, WIDTH, Canvas, size_text, time_text

# The contestants, as a reader knows them.
NAMES = {
    "thp": "the kernel: huge pages on demand",
    "plain": "the kernel: small pages on demand",
    "hugetlb": "the kernel: a pool of huge pages",
    "surplus_hugetlb": "the kernel: surplus huge pages",
    "standing_hugetlb": "an idle pool of huge pages",
}


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
    """Returns the heading: for the largest block, glebe's median and the fastest other's, named."""
    largest = max(row["pages"] for row in rows)
    medians = {row["who"]: row["median"] for row in rows if row["pages"] == largest}
    own = medians.pop("glebe", None)
    if own is None or not medians:
        return "Time to get a block"
    other = min(medians, key=medians.get)
    name = NAMES.get(other, other).removesuffix(" on demand")
    return f"A block of {size_of(largest)}: glebe {time_text(own)}; {name} {time_text(medians[other])}"


def latencies(canvas, rows, page_bytes, last="max"):
    """Draws a group of marks for each size, with a mark for each contestant."""
    size_of = lambda pages: size_text(pages * page_bytes)
    sizes = sorted({row["pages"] for row in rows})
    who = list(dict.fromkeys(row["who"] for row in rows))
    slowest = {"max": "the slowest", "p99": "the 99th percentile"}[last]
    subtitle = f"Mark at the median, line from the fastest to {slowest}. The kernel's memory comes zeroed."
    canvas.heading(finding(rows, size_of), subtitle)
    canvas.legend([({"fill": colour}, NAMES.get(name, name)) for colour, name in zip(COLOURS, who)])
    low = math.floor(math.log10(min(row["min"] for row in rows)))
    top = math.ceil(math.log10(max(row[last] for row in rows)))
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
        line = {"x1": x, "x2": x, "y1": at(row["min"]), "y2": at(row[last])}
        canvas.add("line", stroke=colour, stroke_width=2, **line)
        canvas.add("circle", cx=x, cy=at(row["median"]), r=4, fill=colour)
    for nth, size in enumerate(sizes):
        x = AXIS + group * (nth + 0.5)
        canvas.add("text", size_of(size), x=x, y=canvas.y + high + 22, text_anchor="middle")
    canvas.y += high + 44
    canvas.add("text", "size of the block", x=WIDTH / 2, y=canvas.y, text_anchor="middle", class_="d")


def block_rows(data):
    """Returns the rows of a block of some number of pages, which is their `pages`."""
    wanted = lambda row: row["unit"] == "us" and row["case"].startswith("recall_") and "min" in row
    rows = [row for row in data["rows"] if wanted(row) and row["case"].split("_")[1].isdigit()]
    rows = [{**row, "pages": int(row["case"].split("_")[1])} for row in rows]
    return [row for row in rows if row["case"].count("_") == 1]


def picture(data, last="max"):
    canvas = Canvas()
    if data.get("map"):
        granules(canvas, data)
    latencies(canvas, block_rows(data), data.get("page_bytes", 4096), last)
    return canvas.finish("Times of glebe and of the kernel to get a block, by its size")
