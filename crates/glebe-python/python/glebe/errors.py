"""The errors of glebe. The texts name values and limits, if there are any.

If a daemon refuses a lease, `errno` is its reason, and `limit` the number that the request exceeds.
"""


class Error(Exception):
    """The base class of all errors."""


class BadArgument(Error, ValueError):
    """A length, an offset or an alignment is invalid."""

    errno = limit = None


class Forked(Error, RuntimeError):
    """The object belongs to the process that this one was forked from."""


# MemoryError comes first, as in NoRun and Budget. tblib, which Dask loads, unpickles an error by a
# call of `__new__`, and Python refuses that call otherwise.
class NoMemory(MemoryError, Error):
    """The machine, a cgroup, a pool or a limit has too little. `available`: bytes or `None`.

    `errno`: the error number, if the kernel or a daemon refused.
    """

    available = errno = limit = None


class NoRun(MemoryError, Error):
    """The reserve has no free run of this length. `asked`, `longest`: pages."""

    asked = longest = 0


class WouldWait(Error):
    """Other threads are copying into every run that fits, or leased memory is on its way back."""

    errno = limit = None


class SystemRefused(Error, OSError):
    """The kernel refused a call, not for lack of memory. `errno`: its error number, if any."""

    def __reduce__(self):
        # OSError keeps `errno` outside of `__dict__`.
        kind, args, *_ = super().__reduce__()
        return kind, args, {**self.__dict__, "errno": self.errno}


class Unsupported(Error):
    """The machine, the process or the memory does not support this; the text says why."""


class Purged(Error):
    """The kernel took a page, or the daemon a lease. `offset`: the byte where the page begins."""

    offset = 0


class Budget(MemoryError, Error):
    """Pinned objects leave no room in a store. `pinned`, `budget`: bytes."""

    pinned = budget = 0


class Stale(Error, LookupError):
    """The key has no object in the store, or a dead one."""


class Pinned(Error):
    """The object is pinned, which forbids the call."""


class Damaged(Error):
    """The kept copy of an object differs from the stored bytes, so the object is lost."""


class Cuda(Error, RuntimeError):
    """A call of the CUDA runtime failed. `call`: its name; `code`: the runtime's error number.

    `offset`, `length`: the piece of the memory in bytes, if the call was for one.
    """

    call = code = offset = length = None
