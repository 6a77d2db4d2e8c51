"""Idle contiguous memory, volatile memory and compressed stores.

    >>> import glebe
    >>> reserve = glebe.Reserve(64 << 20)        # bytes, set aside once
    >>> cache = reserve.cache("tiles")           # uses what no block holds
    >>> cache["a"] = b"bytes"
    >>> block = reserve.alloc(bytes=4 << 20)     # contiguous; takes cached pages back
    >>> cache.get("a")                           # b"bytes", or None if the block took it

Lengths and offsets are in bytes, runs in pages of `PAGE_BYTES`. Buffers are C-contiguous. Calls
that take longer than about a microsecond let other threads run. `glebe.errors` has the errors.
In a forked child, most calls on an object of the parent raise `errors.Forked`, unless the object's
class says otherwise.
"""

import os as _os

from glebe import errors
from glebe._glebe import PAGE_BYTES, Block, Contig, Lease, Promise, Reserve, __version__, contig
from glebe._glebe import SharedCache, lease, shared_cache
from glebe._glebe import ranges_not_inherited as _ranges_not_inherited
from glebe._mapping import Cache
from glebe.errors import Error, NoRun

__all__ = [
    "PAGE_BYTES",
    "Block",
    "Cache",
    "Contig",
    "Error",
    "Lease",
    "NoRun",
    "Promise",
    "Reserve",
    "SharedCache",
    "contig",
    "errors",
    "lease",
    "shared_cache",
]


def __getattr__(name):
    """Imports `glebe.cuda`, `glebe.swap` and `glebe.volatile` at their first use."""
    if name in ("cuda", "swap", "volatile"):
        from importlib import import_module

        return import_module(f"glebe.{name}")
    raise AttributeError(f"module 'glebe' has no attribute {name!r}")


def _warn_in_child():
    if count := _ranges_not_inherited():
        import warnings

        warnings.warn(
            f"{count} arrays or views of glebe's contiguous memory read as zeros in this forked "
            "process: start it by 'spawn' or 'forkserver', or delete them before",
            RuntimeWarning,
            stacklevel=2,
        )


_os.register_at_fork(after_in_child=_warn_in_child)
