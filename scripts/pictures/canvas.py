"""A picture in SVG, drawn from the top down, and the texts of sizes and times.

Each picture has a background of its own, so it can be read on any page. Its colours suit readers
with red-green blindness, and follow the viewer's dark mode.
"""

import html

WIDTH, MARGIN, AXIS = 900, 32, 78
# Blue, orange, green, violet, red, grey.
COLOURS = ["#2563eb", "#d1570c", "#0f8a6a", "#8a5cc2", "#b03060", "#6b7280"]
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}.h{font-size:20px;font-weight:600}.t{font-weight:600}
.d{fill:#59636e}.card{fill:#fff;stroke:#d1d9e0}.free{fill:#e4e8ec}.first{fill:#2563eb}
.tenant{fill:#f2b134}.grid{stroke:#d9dee3}.line{stroke:#59636e}.arrow{fill:#59636e}
.on{fill:#fff}.dark{fill:#1f2328}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.d{fill:#9198a1}
.card{fill:#0d1117;stroke:#3d444d}.free{fill:#2a313a}.grid{stroke:#2a313a}.line{stroke:#9198a1}.arrow{fill:#9198a1}
.on{fill:#fff}.dark{fill:#1f2328}}"""


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
            if x > MARGIN and x + 18 + 7 * len(name) > WIDTH - MARGIN:
                x, self.y = MARGIN, self.y + 20
            self.add("rect", x=x, y=self.y, width=12, height=12, rx=3, **look)
            self.add("text", name, x=x + 18, y=self.y + 11)
            x += 40 + 7 * len(name)
        self.y += 26

    def axis(self, decades, at, below, label):
        """Draws a vertical line for each decade, from `y` to `below`, and its label under it."""
        for decade in decades:
            x = at(10.0**decade)
            self.add("line", class_="grid", x1=x, x2=x, y1=self.y, y2=below)
            self.add("text", label(10.0**decade), x=x, y=below + 18, text_anchor="middle", class_="d")

    def finish(self, title=""):
        height = self.y + MARGIN
        size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        head += f"<title>{html.escape(title)}</title>" if title else ""
        card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
        return "\n".join([head, f"<style>{STYLE}</style>", card, *self.body, "</svg>"])


def size_text(size):
    """Returns bytes in the largest unit of which there is at least one."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} B"


def time_text(us):
    for unit, scale in (("µs", 1), ("ms", 1e3)):
        if us < 1000 * scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:.3g} s"
