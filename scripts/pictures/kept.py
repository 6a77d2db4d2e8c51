"""The pictures that are kept in docs/pictures, each made of files in bench/results.

`PICTURES` maps the name of a picture to a function that draws it. No figure is written here.
"""

import json
import pathlib

from . import blocks, overview
from .canvas import MARGIN, Canvas, size_text
from .charts import bars, ranges

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench" / "results"
FOLDER = ROOT / "docs" / "pictures"


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def row(data, case, who, unit):
    rows = [row for row in data["rows"] if (row["case"], row["who"], row["unit"]) == (case, who, unit)]
    if len(rows) != 1:
        raise KeyError(f"{len(rows)} rows {case}, {who}, {unit} in {data['bench']}")
    return rows[0]


def headed(title, subtitle):
    canvas = Canvas()
    canvas.heading(title, subtitle)
    return canvas


def show_overview():
    data = results("2026-11-23-reserve")
    glebe, kernel = (row(data, "recall_32000", who, "us")["p99"] for who in ("glebe", "thp"))
    return overview.picture(glebe, kernel, "125 MiB")


def show_latency():
    return blocks.picture(results("2026-11-23-reserve"), "p99")


def show_recall():
    """Times of a block of 125 MiB, or of the segment of a store, in different company."""
    reserve, serve, hosts = map(results, ("2026-11-23-reserve", "2026-11-23-serve", "2026-11-30-hosts"))
    cases = [
        ("a full cache, nothing else runs", row(reserve, "recall_alone_32000", "glebe", "us"), 1.0, 0),
        ("a cache that a thread fills", row(reserve, "recall_idle_32000", "glebe", "us"), 1.0, 0),
        ("beside a compiler on all processors", row(reserve, "recall_32000", "glebe", "us"), 1.0, 0),
        ("glebe serve, while clients read", row(serve, "recall_125m", "glebe", "us"), 1.0, 2),
        ("glebe lend: 256 MiB from another host", row(hosts, "recall_256m", "glebe", "ms"), 1e3, 3),
        ("the same, while hosts read", row(hosts, "recall_256m_reads", "glebe", "ms"), 1e3, 3),
        ("the kernel, beside a compiler", row(reserve, "recall_32000", "thp", "us"), 1.0, 1),
    ]
    canvas = headed("How long a program waits for memory that a cache uses",
                    "125 MiB unless it says more. Mark and number: the median; line: from the fastest to the 99th percentile.")
    times = lambda of, scale: [of[key] * scale for key in ("min", "median", "p99")]
    ranges(canvas, [(name, *times(of, scale), colour) for name, of, scale, colour in cases], 290)
    return canvas.finish("Times of recalls in different company")


def show_limit():
    data = results("2026-11-24-python")
    names = {"volatile": "volatile_cache, no size to choose", "dict": "a dict without a limit"}
    canvas = headed("One limit of 384 MiB, caches of several sizes",
                    "Requests in a second of a Python program whose other arrays grow and shrink meanwhile; more is better.")
    drawn = []
    for of in data["rows"]:
        if of["case"] == "pipeline":
            name = names.get(of["who"], f"an LRU of {of['who'].partition('-')[2]} MiB")
            value = of.get("median")
            text = "killed by the kernel" if value is None else f"{value:,.0f}"
            drawn.append((name, value, text, 0 if of["who"] == "volatile" else 1))
    bars(canvas, drawn, 240)
    return canvas.finish("Requests answered by caches of several sizes under one limit of memory")


def show_hits():
    data = results("2026-11-30-hosts")
    canvas = headed("Hits of a store whose memory is taken back",
                    "Mooncake's clients on three hosts: share of reads that found their value, as recalls become frequent.")
    canvas.legend([({"fill": "#2563eb"}, "segments lent by glebe, taken back"),
                   ({"fill": "#d1570c"}, "segments in memory that stays")])
    drawn = []
    for count in (0, 1, 10, 60):
        case = f"hit_ratio_{count}_recalls_a_minute" if count else "hit_ratio"
        for who, colour in (("glebe", 0), ("shared memory", 1)):
            value = row(data, case, who, "share")["median"]
            name = {0: "no recall", 1: "1 recall in a minute"}.get(count, f"{count} recalls in a minute")
            drawn.append(("" if colour else name, value, f"{100 * value:.1f} %", colour))
    bars(canvas, drawn, 190)
    return canvas.finish("Hit ratio of a store by the number of recalls in a minute")


def show_aged():
    """Tries on a machine that ran for long: each mixture of programs is a row of a length."""
    data = results("2026-11-23-aged")
    lengths = sorted({of["length"] for of in data["rows"]})
    canvas = headed("A long piece on a machine that has run for long",
                    "Tries on a machine aged by several mixtures of programs. Mark: the slowest median of them; line: to the slowest try.")
    drawn = []
    for length in lengths:
        rows = [of for of in data["rows"] if of["length"] == length]
        tries, got = (sum(of[key] for of in rows) for key in ("tries", "had"))
        # Milliseconds there, microseconds here.
        low, median, high = (1e3 * pick(of[key] for of in rows) for pick, key in (
            (min, "had_p50_ms"), (max, "had_p50_ms"), (max, "had_p100_ms")))
        drawn.append((f"{size_text(length)}: {got} of {tries} tries succeeded", low, median, high, 0))
    of_blocks = [of for mixture in data["blocks"] for of in mixture["lengths"] if of["what"] == "128 MiB"]
    tries, got = (sum(of[key] for of in of_blocks) for key in ("tries", "had"))
    low, median, high = (1e3 * pick(of[key] for of in of_blocks) for pick, key in (
        (min, "p50_ms"), (max, "p50_ms"), (max, "p100_ms")))
    drawn.append((f"128 MiB out of the bank: {got} of {tries}", low, median, high, 2))
    ranges(canvas, drawn, 250)
    return canvas.finish("Times to find a contiguous piece on an aged machine, by its length")


def show_pool():
    data = results("2026-11-28-zpool-overhead")
    canvas = headed("Memory beyond the compressed bytes",
                    "After half of all objects were deleted at random, four times over; less is better.")
    names = {"glebe": "glebe", "zram, compacted": "zram, compacted by hand", "zram": "zram"}
    rows = [of for of in data["rows"] if of["case"] == "overhead_random_delete_percent"]
    drawn = [(names.get(of["who"], of["who"]), of["median"], f"{of['median']:,.0f} %", 0 if of["who"] == "glebe" else 1)
             for of in sorted(rows, key=lambda of: of["median"])]
    bars(canvas, drawn, 190)
    return canvas.finish("Memory that pools of compressed objects hold beyond the bytes stored")


PICTURES = {
    "overview": show_overview,
    "latency": show_latency,
    "recall": show_recall,
    "limit": show_limit,
    "hits": show_hits,
    "aged": show_aged,
    "pool": show_pool,
}


def write():
    FOLDER.mkdir(exist_ok=True)
    for name, show in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(show() + "\n")


def differing():
    """Returns the files that are not what `write` would make: changed, missing, or left over."""
    wanted = {FOLDER / f"{name}.svg": show() + "\n" for name, show in PICTURES.items()}
    there = set(FOLDER.glob("*.svg"))
    return sorted(there ^ set(wanted)) + sorted(
        file for file, text in wanted.items() if file in there and file.read_text() != text
    )
