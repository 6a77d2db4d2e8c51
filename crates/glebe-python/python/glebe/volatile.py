"""Memory that the kernel may take when memory is short, with reports of what it took."""

from functools import partial, wraps
from itertools import count
from os import getpid
from sys import modules
from threading import Event, get_ident

from glebe._glebe import Held, Values, VolatileBuffer

__all__ = ["Held", "VolatileBuffer", "volatile_cache"]

# If the kernel takes a result, its key and form stay. The cache removes such keys when it has more
# than twice as many keys as results, plus this number.
_DEAD_MOST = 64


_BY = "volatile_cache"


def _pack(result):
    """Returns the bytes of a result, and a function that makes an equal result from them."""
    kind = type(result)
    if kind is bytes or kind is bytearray:
        return result, kind
    if kind is memoryview:
        return _pack_view(result)
    if hasattr(result, "dtype") and (numpy := modules.get("numpy")):
        if isinstance(result, (numpy.ndarray, numpy.generic)):
            from glebe._arrays import pack, unpack

            flat, form = pack(result, _BY)
            return flat, partial(unpack, form)
    raise TypeError(
        f"{_BY}: a result is a NumPy array, bytes, a bytearray or a memoryview, "
        f"not {kind.__name__}: return bytes() or memoryview() of another buffer"
    )


def _pack_view(view):
    form, shape = view.format, view.shape
    if form in ("O", "P"):
        raise TypeError(f"{_BY}: a buffer of Python objects cannot be kept")
    if not view.c_contiguous:
        raise TypeError(f"{_BY}: a view that is not C-contiguous cannot be kept: return bytes()")
    if form == "B" and view.ndim == 1:
        return view, memoryview
    try:
        flat = view.cast("B")
        flat.cast(form, shape)
    except (TypeError, ValueError):
        raise TypeError(
            f"{_BY}: a view of the format {form!r} and the shape {shape} cannot be made again: "
            "return bytes() of it"
        ) from None
    return flat, lambda value: memoryview(value).cast(form, shape)


class _Making:
    """A running call of the function, for which other threads wait."""

    def __init__(self):
        self.by = getpid(), get_ident()
        self.done = Event()
        self.made = None  # (value, how to make the result from it), or None

    def is_others(self):
        """Returns true while another thread of this process makes the call."""
        return not self.done.is_set() and self.by[0] == getpid() and self.by[1] != get_ident()

    def wait(self):
        """Waits for the call, unless this thread or a parent process makes it. Returns `made`."""
        if self.is_others():
            self.done.wait()
        return self.made


class _Cached:
    """The results of one function."""

    def __init__(self, function, addresses, hot, typed):
        self._function = function
        self._typed = typed
        self._values = Values(addresses, hot)
        self._known = {}  # key: (number, how to make the result again)
        self._numbers = count(1)
        self._making = {}  # key: the running call; dictionary operations are atomic

    def __call__(self, *args, **kwargs):
        key = self._key(args, kwargs)
        if (found := self._found(key)) is not None:
            return found
        mine = under_way = _Making()
        # Inside, because an interrupt may come just after `setdefault`.
        try:
            under_way = self._making.setdefault(key, mine)
            if under_way is not mine and (made := under_way.wait()):
                self._values.count(True)
                return made[1](made[0])
            # Another thread may have ended its call meanwhile.
            if (found := self._found(key)) is not None:
                return found
            self._values.count(False)
            mine.made = value, unpack = self._kept(key, self._function(*args, **kwargs))
            return unpack(value)
        finally:
            mine.done.set()
            for ended in (mine, under_way):
                if self._making.get(key) is ended and not ended.is_others():
                    self._making.pop(key, None)

    def _key(self, args, kwargs):
        named = tuple(sorted(kwargs.items()))
        if not self._typed:
            return args, named
        return args, named, tuple(map(type, args)), tuple(type(value) for _, value in named)

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
        """Forgets all results. Arrays in use stay."""
        self._known.clear()
        self._values.clear()

    def drop_unused(self):
        """Drops the results that no array or view uses. Returns the number of bytes dropped."""
        return self._values.drop_unused()

    def stats(self):
        """Returns counters and gauges by name. Each name ends in its unit."""
        return self._values.stats()


def volatile_cache(addresses, *, hot=None, typed=False):
    """Keeps the results of a function in volatile memory, by its arguments, which must be hashable.

    A result comes back with the same type, shape and order. It may be a NumPy array without Python
    objects (also a masked one, a matrix or a record array), a NumPy scalar, `bytes`, a `bytearray`
    or a C-contiguous `memoryview`. Arrays and views are read-only, and stay while they or views of
    them exist; results of other types are copies. When memory is short, the kernel may take all
    other results, and the function is called again.

    `addresses`: bytes of address space, the most that all results may use; not memory. `hot`: bytes
    of the latest results that the kernel cannot take; by default an eighth of `addresses`, at most
    32 MiB. `typed`: keeps separate results for equal arguments of two types, such as 1 and 1.0.
    Raises `TypeError`, which says what to return, for a result of another type, and `ValueError`
    for a result longer than `addresses`.

    If several threads ask for one key at once, the function runs once and all wait for it; if it
    raises, each of them calls it. The function has `clear()`, `drop_unused()` and `stats()`.
    """

    def decorate(function):
        cached = _Cached(function, addresses, hot, typed)

        @wraps(function)
        def call(*args, **kwargs):
            return cached(*args, **kwargs)

        call.clear, call.drop_unused, call.stats = cached.clear, cached.drop_unused, cached.stats
        return call

    return decorate
