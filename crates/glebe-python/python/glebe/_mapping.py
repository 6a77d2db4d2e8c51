"""`Cache`: what makes a mutable mapping of the library's cache."""

from collections.abc import ItemsView, MutableMapping, ValuesView

from glebe import _glebe  # type: ignore[attr-defined]

_ABSENT = object()


class _Items(ItemsView):
    """Without entries that turn out to be lost."""

    def __iter__(self):
        for key in self._mapping:
            if (value := self._mapping.get(key, _ABSENT)) is not _ABSENT:
                yield key, value

    def __contains__(self, item):
        key, value = item
        return key in self._mapping and self._mapping.get(key, _ABSENT) == value


class _Values(ValuesView):
    def __iter__(self):
        for _, value in _Items(self._mapping):
            yield value

    def __contains__(self, value):
        return any(value == other for other in self)


class Cache(_glebe.Cache, MutableMapping):
    """A mapping of keys to `bytes` in the idle pages of a reserve; entries may be lost at any time.

    Whole values come back or none: `cache[key]` is what was put last, or `KeyError`. `in`, `len`
    and iteration tell what was put; an entry is known to be lost once it is asked for. Keys are
    `bytes`, `str` or tuples of these, of integers of at most 64 bits and of `None`. A value takes
    whole pages.
    """

    __slots__ = ()

    def items(self):
        return _Items(self)

    def values(self):
        return _Values(self)

    def pop(self, key, default=_ABSENT, /):
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
