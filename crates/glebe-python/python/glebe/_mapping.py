"""`Cache`: what makes a mutable mapping of the library's cache."""

from collections.abc import ItemsView, MutableMapping, ValuesView

from glebe import _glebe  # type: ignore[attr-defined]

_ABSENT = object()


def _are_equal(value, other):
    """Whether two values are the same, of which each may be an array."""
    same = value == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)


class _Items(ItemsView):
    """Without entries that turn out to be lost."""

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
    """A mapping of keys to values in the idle pages of a reserve; entries may be lost at any time.

    Whole values come back or none: `cache[key]` is what was put last, or `KeyError`. An array or
    a scalar of NumPy comes back as a copy with that type, shape and order; each other buffer comes
    back as `bytes`. Keys are `bytes`, `str`, integers of at most 64 bits, also NumPy's, or tuples
    of these and of `None`. A value of up to half a page shares pages with others, a longer one
    takes whole pages.

    An entry is known to be lost once it is asked for: until then `in` and `len` count it. Iteration
    asks, and leaves lost entries out.
    """

    __slots__ = ()

    def items(self):
        """Returns a view of keys and values, without those that are lost when their turn comes."""
        return _Items(self)

    def values(self):
        """Returns a view of the values, without those that are lost when their turn comes."""
        return _Values(self)

    def pop(self, key, default=_ABSENT, /):
        """Removes a key and returns its value; if that is not there `default`, else `KeyError`."""
        value = self.get(key, _ABSENT)
        try:
            del self[key]
        except KeyError:
            value = _ABSENT  # it was not there, or another thread took it meanwhile
        if value is not _ABSENT:
            return value
        if default is _ABSENT:
            raise KeyError(key)
        return default

    def popitem(self):
        """Removes some key that has a value, returns both; raises `KeyError` if there is none."""
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
        return f"<glebe.Cache of {len(self)} entries>"

    clear = _glebe.Cache.clear
