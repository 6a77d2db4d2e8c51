"""Draws what glebe does, for somebody who has never heard of it: three states of one reserve."""

from .canvas import COLOURS, MARGIN, WIDTH, Canvas, time_text

COLUMNS, ROWS, CELL, GAP = 14, 6, 17, 2
# The piece that the program asks for: rows of cells in the middle.
PIECE = range(2, 5)


def panel(canvas, x, number, title, lines, block):
    """Draws a state of the memory. `block`: the program has its piece."""
    canvas.add("text", f"{number}  {title}", x=x, y=canvas.y, class_="t")
    for row in range(ROWS):
        for column in range(COLUMNS):
            if block and row in PIECE:
                continue
            canvas.add("rect", class_="tenant", x=x + column * CELL, y=canvas.y + 14 + row * CELL,
                       width=CELL - GAP, height=CELL - GAP, rx=2)
    if block:
        canvas.add("rect", class_="first", x=x, y=canvas.y + 14 + PIECE.start * CELL,
                   width=COLUMNS * CELL - GAP, height=len(PIECE) * CELL - GAP, rx=3)
        middle = canvas.y + 14 + (PIECE.start + len(PIECE) / 2) * CELL
        canvas.add("text", "the program's block", x=x + COLUMNS * CELL / 2, y=middle + 4,
                   text_anchor="middle", class_="on")
    for nth, line in enumerate(lines):
        canvas.add("text", line, x=x, y=canvas.y + 14 + ROWS * CELL + 22 + 18 * nth, class_="d")


def arrow(canvas, x, text):
    middle = canvas.y + 14 + ROWS * CELL / 2
    canvas.add("line", class_="line", stroke_width=2, x1=x, x2=x + 34, y1=middle, y2=middle)
    canvas.add("path", class_="arrow", d=f"M{x + 34} {middle - 6}l10 6l-10 6z")
    canvas.add("text", text, x=x + 22, y=middle - 12, text_anchor="middle", class_="d")


def picture(glebe, kernel, size):
    """`glebe` and `kernel` are the times in µs that 99 of 100 requests for `size` took at most."""
    canvas = Canvas()
    canvas.heading("Memory that is set aside is not idle",
                   "Each square is a part of the memory that your program set aside once.")
    canvas.legend([({"class_": "tenant"}, "your program's cache"),
                   ({"class_": "first"}, "a block: one physical piece")])
    canvas.y += 22
    step = (WIDTH - 2 * MARGIN - COLUMNS * CELL) / 2
    xs = [MARGIN, MARGIN + step, MARGIN + 2 * step]
    panel(canvas, xs[0], 1, "Nobody needs the memory", ["A cache uses all of it."], False)
    panel(canvas, xs[1], 2, "The program asks for a block",
          [f"It takes {time_text(round(glebe))}. The cache loses these", "pages and keeps all others."], True)
    panel(canvas, xs[2], 3, "The program frees the block", ["The cache fills up again."], False)
    for x, text in zip(xs, ("alloc", "free")):
        arrow(canvas, x + COLUMNS * CELL + (step - COLUMNS * CELL) / 2 - 22, text)
    canvas.y += 14 + ROWS * CELL + 82
    canvas.add("text", f"Time to get {size} while a compiler keeps the machine busy: 99 of 100 requests took at most",
               x=MARGIN, y=canvas.y - 14)
    for name, us, colour in (("glebe, one piece", glebe, COLOURS[0]), ("the kernel, pieces of 2 MiB", kernel, COLOURS[1])):
        left = MARGIN + 190
        width = max((WIDTH - MARGIN - 90 - left) * us / kernel, 2.0)
        canvas.add("text", name, x=left - 10, y=canvas.y + 14, text_anchor="end")
        canvas.add("rect", x=left, y=canvas.y, width=width, height=20, rx=3, fill=colour)
        canvas.add("text", time_text(round(us)), x=left + width + 8, y=canvas.y + 14)
        canvas.y += 28
    canvas.y -= 14
    return canvas.finish("A reserve: a cache uses it until the program asks for a block")
