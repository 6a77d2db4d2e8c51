"""Memory that the kernel may take when memory is short, and word of what it took."""

from functools import wraps
from itertools import count
from os import getpid
from threading import Event, get_ident

from glebe._glebe import Held, Values, VolatileBuffer

__all__ = ["Held", "VolatileBuffer", "volatile_cache"]

# Of results that the kernel took only the number and the shape are left; more than so many of
# them are looked for.
_DEAD_MOST = 64


def _pack(result):
    """The bytes of an array or a buffer, and how it is made of them again."""
    if type(result).__module__ == "numpy" and hasattr(result, "dtype"):
        import numpy

        if result.dtype.hasobject:
            raise TypeError("volatile_cache: an array of Python objects cannot be kept")
        dtype, shape = result.dtype, result.shape
        flat = numpy.ascontiguousarray(result).reshape(-1).view(numpy.uint8)
        return flat, lambda value: numpy.frombuffer(value, numpy.uint8).view(dtype).reshape(shape)
    try:
        view = memoryview(result)
    except TypeError:
        kind = type(result).__name__
        raise TypeError(f"volatile_cache: results are arrays or buffers, not {kind}") from None
    if not view.c_contiguous:
        raise TypeError("volatile_cache: a view that is not C-contiguous cannot be kept")
    form, shape = view.format, view.shape
    if form in ("O", "P"):
        raise TypeError("volatile_cache: a buffer of Python objects cannot be kept")
    flat = view.cast("B") if view.nbytes else b""
    if not view.nbytes:
        return flat, lambda value: memoryview(bytes(0))
    return flat, lambda value: memoryview(value).cast(form, shape)


class _Making:
    """A call of the function under way, which other threads wait for."""

    def __init__(self):
        self.by = getpid(), get_ident()
        self.done = Event()
        self.made = None  # (value, how the result is made of it), unless it raised

    def wait(self):
        """What was made. None too where the thread is this one, or stayed with the parent."""
        if self.by[0] == getpid() and self.by[1] != get_ident():
            self.done.wait()
        return self.made


class _Cached:
    """The results of one function."""

    def __init__(self, function, addresses, hot):
        self._function = function
        self._values = Values(addresses, hot)
        self._known = {}  # key: (number, how it is made again)
        self._numbers = count(1)
        self._making = {}  # key: the call under way; a step of a dictionary is atomic

    def __call__(self, *args, **kwargs):
        key = (args, tuple(sorted(kwargs.items()))) if kwargs else args
        if (found := self._found(key)) is not None:
            return found
        mine = _Making()
        under_way = self._making.setdefault(key, mine)
        if under_way is not mine and (made := under_way.wait()):
            self._values.count(True)
            return made[1](made[0])
        try:
            # Another thread may have ended its call since it was looked for.
            if (found := self._found(key)) is not None:
                return found
            self._values.count(False)
            mine.made = value, unpack = self._kept(key, self._function(*args, **kwargs))
            return unpack(value)
        finally:
            if self._making.get(key) is under_way:
                self._making.pop(key, None)
            mine.done.set()

    def _found(self, key):
        if known := self._known.get(key):
            value = self._values.get(known[0])
            if value is not None:
                self._values.count(True)
                return known[1](value)
            if self._known.get(key) is known:
                self._known.pop(key, None)
        return None

    def _kept(self, key, result):
        data, unpack = _pack(result)
        number = next(self._numbers)
        value = self._values.keep(number, data)
        if value.is_kept:
            self._known[key] = number, unpack
            if len(self._known) > 2 * len(self._values) + _DEAD_MOST:
                self._forget_lost()
        return value, unpack

    def _forget_lost(self):
        for key, (number, _) in list(self._known.items()):
            if self._values.get(number) is None:
                self._known.pop(key, None)

    def clear(self):
        self._known.clear()
        self._values.clear()

    def drop_unused(self):
        return self._values.drop_unused()

    def stats(self):
        return self._values.stats()


def volatile_cache(addresses, *, hot=None):
    """Keeps the results of a function in volatile memory, by its arguments, which are hashable.

    A result is a NumPy array without Python objects, or another buffer. What is returned is
    read-only and cannot vanish while it, or a view of it, lives. Other results the kernel may take
    when memory is short; the function is then called again. `addresses`: bytes of address space,
    the most that results may ever use, not memory. `hot`: bytes of what was asked for last that
    the kernel cannot take; by default an eighth of `addresses`, at most 32 MiB. Raises `TypeError`
    for a result that is no buffer, `ValueError` for one longer than `addresses`.

    Threads that ask for one key at once wait for one call of the function; if that raises, each of
    them calls it. The function has `clear()`, `drop_unused()` (drops what no array uses, returns
    bytes) and `stats()`.
    """

    def decorate(function):
        cached = _Cached(function, addresses, hot)

        @wraps(function)
        def call(*args, **kwargs):
            return cached(*args, **kwargs)

        call.clear, call.drop_unused, call.stats = cached.clear, cached.drop_unused, cached.stats
        return call

    return decorate
