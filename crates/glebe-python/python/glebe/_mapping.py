"""`Cache`: adds the methods of a mutable mapping to the library's cache."""

from collections.abc import ItemsView, MutableMapping, ValuesView
from sys import modules

from glebe import _glebe  # type: ignore[attr-defined]

_ABSENT = object()


def _are_equal(value, other):
    """Returns true if two values, which may be arrays, are equal."""
    numpy = modules.get("numpy")
    try:
        if numpy and (hasattr(value, "dtype") or hasattr(other, "dtype")):
            if numpy.shape(value) != numpy.shape(other):
                return False  # `==` would raise, or repeat the smaller array
        same = value == other
    except (TypeError, ValueError):
        return False  # NumPy: arrays with other fields; a list that is no array
    return bool(same.all()) if hasattr(same, "all") else bool(same)


class _Items(ItemsView):
    """A view of items without lost entries."""

    def __iter__(self):
        for key in self._mapping:
            if (value := self._mapping.get(key, _ABSENT)) is not _ABSENT:
                yield key, value

    def __contains__(self, item):
        key, value = item
        found = self._mapping.get(key, _ABSENT)
        return found is not _ABSENT and _are_equal(found, value)


class _Values(ValuesView):
    def __iter__(self):
        for _, value in _Items(self._mapping):
            yield value

    def __contains__(self, value):
        return any(_are_equal(value, other) for other in self)


class Cache(_glebe.Cache, MutableMapping):
    """A mapping of keys to values in the idle pages of a reserve. Entries may be lost at any time.

    `cache[key]` is the whole value that was put last, or raises `KeyError`. A NumPy array or scalar
    comes back as a copy with the same type, shape and order, every other buffer as `bytes`. Keys
    are `bytes`, `str`, integers of at most 64 bits (also NumPy's), or tuples of these and `None`. A
    value of up to half a page shares pages with others; a longer one takes whole pages.

    The cache usually notices a lost entry only on a read: until then `in` and `len` count it.
    Iteration leaves lost entries out.
    """

    __slots__ = ()

    def items(self):
        """Returns a view of keys and values, without entries that are lost at their turn."""
        return _Items(self)

    def values(self):
        """Returns a view of the values, without entries that are lost at their turn."""
        return _Values(self)

    def pop(self, key, default=_ABSENT, /):
        """Removes a key. Returns its value, or else `default`. Raises `KeyError` without either."""
        value = self.get(key, _ABSENT)
        try:
            del self[key]
        except KeyError:
            value = _ABSENT  # missing, or another thread removed it meanwhile
        if value is not _ABSENT:
            return value
        if default is _ABSENT:
            raise KeyError(key)
        return default

    def popitem(self):
        """Removes a key with a value and returns both. Raises `KeyError` if the cache is empty."""
        for key in self:
            try:
                return key, self.pop(key)
            except KeyError:
                pass  # lost, or taken by another thread
        raise KeyError("popitem(): the cache is empty")

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__

    def __repr__(self):
        try:
            return f"<glebe.Cache of {len(self)} entries>"
        except ValueError:
            return "<glebe.Cache, closed>"

    clear = _glebe.Cache.clear
