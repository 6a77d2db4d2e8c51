"""Two kinds of charts: bars on a linear axis, and ranges of times on a logarithmic axis."""

import math

from .canvas import COLOURS, MARGIN, WIDTH, time_text

ROW = 30  # pixels from one row to the next
VALUE = 120  # pixels for the value behind the longest bar


def bars(canvas, rows, name_width, most=None):
    """Draws rows (name, value, text of the value, index of the colour). Without a value, only the
    text is drawn."""
    most = most or max(value for _, value, _, _ in rows if value is not None)
    left = MARGIN + name_width
    for name, value, text, colour in rows:
        middle = canvas.y + ROW / 2
        canvas.add("text", name, x=left - 10, y=middle + 4, text_anchor="end")
        width = 0.0
        if value is not None:
            width = (WIDTH - MARGIN - VALUE - left) * value / most
            canvas.add("rect", x=left, y=canvas.y + 5, width=max(width, 1.0), height=ROW - 10, rx=3,
                       fill=COLOURS[colour])
        canvas.add("text", text, x=left + width + 8, y=middle + 4)
        canvas.y += ROW


def ranges(canvas, rows, name_width):
    """Draws rows (name, low, median, high, index of the colour) of times in µs."""
    left, right = MARGIN + name_width, WIDTH - MARGIN - 24
    low = math.floor(math.log10(min(row[1] for row in rows)))
    top = math.ceil(math.log10(max(row[3] for row in rows)))
    at = lambda us: left + (right - left) * (math.log10(us) - low) / (top - low)
    below = canvas.y + ROW * len(rows)
    canvas.axis(range(low, top + 1), at, below, time_text)
    for name, least, median, most, colour in rows:
        middle = canvas.y + ROW / 2
        canvas.add("text", name, x=left - 14, y=middle + 4, text_anchor="end")
        canvas.add("line", stroke=COLOURS[colour], stroke_width=3, x1=at(least), x2=at(most),
                   y1=middle, y2=middle)
        canvas.add("circle", cx=at(median), cy=middle, r=5, fill=COLOURS[colour])
        beside = at(most) + 66 < WIDTH - MARGIN
        place = {"x": at(most) + 8} if beside else {"x": at(least) - 8, "text_anchor": "end"}
        canvas.add("text", time_text(median), y=middle + 4, **place)
        canvas.y += ROW
    canvas.y += 24
