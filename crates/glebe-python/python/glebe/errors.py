"""What glebe refuses, by kind. Each text names what was asked for, the value and the limit."""


class Error(Exception):
    """Base of all."""


class BadArgument(Error, ValueError):
    """A length, an offset or an alignment that cannot be."""


class Forked(Error, RuntimeError):
    """The object stayed with the process that this one was forked from."""


class NoMemory(Error, MemoryError):
    """The machine, a cgroup, a pool or a limit has less. `available`: bytes, where it is known."""

    available = None


class NoRun(Error, MemoryError):
    """No free run of the reserve is as long. `asked`, `longest`: pages."""

    asked = longest = 0


class WouldWait(Error):
    """Others are copying into every run that fits."""


class SystemRefused(Error, OSError):
    """The kernel refused a call. `errno`, where there is one."""


class Unsupported(Error):
    """The machine, the process or the memory cannot do this; the text says why."""


class Purged(Error):
    """The kernel took the page. `offset`: bytes, where it began."""

    offset = 0


class Budget(Error, MemoryError):
    """What is pinned leaves no room in a store. `pinned`, `budget`: bytes."""

    pinned = budget = 0


class Stale(Error, LookupError):
    """The key names no object of the store any more, or never did."""


class Pinned(Error):
    """The object is pinned, which stands against the call."""


class Damaged(Error):
    """The copy of an object is not what was stored: its bytes are lost."""
