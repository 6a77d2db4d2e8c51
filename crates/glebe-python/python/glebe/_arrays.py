"""Packs NumPy arrays into bytes and back, with their class, type, shape and order.

A form is a tuple that says how to make an array from its bytes: `(kind, array, mask, options)`.
`array` and, unless it is `None`, `mask` are `(dtype, shape, axes)`: the shape in the order in which
the axes are in memory, and the permutation that restores their order, or `None` for C order.
"""

import pickle
from functools import lru_cache

_ARRAY, _CLASS, _MASKED, _SCALAR = range(4)


def pack(value, by):
    """Returns the bytes of a NumPy array or scalar as a buffer, and its form.

    Raises a `TypeError` that begins with `by` for Python objects, and for classes that
    `unpack` cannot restore.
    """
    import numpy

    if value.dtype.hasobject:
        raise TypeError(f"{by}: an array of Python objects cannot be kept")
    kind = type(value)
    if kind is numpy.ndarray:
        flat, form = _flat(numpy, value)
        return flat, (_ARRAY, form, None, None)
    if kind in (numpy.matrix, numpy.recarray) and not _has_attributes(value):
        flat, form = _flat(numpy, value)
        return flat, (_CLASS, form, None, kind)
    if isinstance(value, numpy.generic):
        # Refuses NumPy's strings, which lose zeros at their ends.
        if kind is value.dtype.type and not isinstance(value, numpy.character):
            flat, form = _flat(numpy, value)
            return flat, (_SCALAR, form, None, None)
    elif kind.__module__.startswith("numpy.ma") and kind is numpy.ma.MaskedArray:
        if value.baseclass is numpy.ndarray:
            return _pack_masked(numpy, value)
    asked = "bytes()" if isinstance(value, bytes) else "numpy.asarray()"
    raise TypeError(
        f"{by}: what comes back would be no {kind.__name__} any more: make it {asked} first"
    )


def _has_attributes(value):
    return any(not name.startswith("_") for name in getattr(value, "__dict__", ()))


def _pack_masked(numpy, value):
    flat, form = _flat(numpy, value.data)
    mask = numpy.ma.getmask(value)
    mask_form = None
    if mask is not numpy.ma.nomask:
        flat_mask, mask_form = _flat(numpy, mask)
        flat = b"".join((flat, flat_mask))
    options = {"fill_value": value.fill_value, "hard_mask": value.hardmask}
    return flat, (_MASKED, form, mask_form, options)


def _flat(numpy, value):
    """Returns the bytes of an array in memory order, without gaps, and its form."""
    array = numpy.asarray(value)
    axes = None
    if not array.flags.c_contiguous:
        order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        array = numpy.ascontiguousarray(array.transpose(order))
        axes = tuple(order.index(axis) for axis in range(len(order)))
    form = array.dtype, array.shape, axes
    return (array.reshape(-1).view(numpy.uint8) if array.nbytes else b""), form


def unpack(form, buffer):
    """Rebuilds the value that `pack` got, from its bytes in `buffer`."""
    import numpy

    kind, array_form, mask_form, options = form
    array = _array(numpy, array_form, buffer, 0)
    if kind == _CLASS:
        return array.view(options)
    if kind == _MASKED:
        mask = numpy.ma.nomask
        if mask_form is not None:
            mask = _array(numpy, mask_form, buffer, array.nbytes)
        return numpy.ma.array(array, mask=mask, copy=False, **options)
    return array[()] if kind == _SCALAR else array


def _array(numpy, form, buffer, offset):
    dtype, shape, axes = form
    array = numpy.ndarray(shape, dtype, buffer, offset)
    return array if axes is None else array.transpose(axes)


def packed(value):
    """Packs a value of a cache. Returns its bytes as `pack` does, and the form as bytes."""
    flat, form = pack(value, "a cache")
    return flat, pickle.dumps(form, 5)


def room(length):
    """Returns a buffer for the bytes of a value, aligned for every type."""
    import numpy

    return numpy.empty(length, numpy.uint8)


@lru_cache(64)
def _form(text):
    return pickle.loads(text)


def unpacked(text, buffer):
    """Unpacks a value with a form from `packed`, which this process made."""
    return unpack(_form(text), buffer)
