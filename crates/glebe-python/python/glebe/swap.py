"""Stores of objects of 1 byte to 2 MiB: at most a budget of them in memory, the rest compressed."""

from glebe._glebe import Key, Pinned, Store

__all__ = ["Key", "Pinned", "Store"]
