"""Objects of 1 byte to 2 MiB, of which no more than a budget is in memory; the rest is compressed."""

from glebe._glebe import Key, Pinned, Store

__all__ = ["Key", "Pinned", "Store"]
