"""The classes of `glebe.errors`: copies, pickles, and the kind of an error number."""

import copy
import inspect
import pickle

import pytest

from glebe import errors

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
NAMES = "asked available budget call code errno length limit longest offset pinned".split()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy])
def test_a_copy_of_an_error_has_its_text_and_values(kind, again):
    error = kind("the text")
    for number, name in enumerate(NAMES, 1):
        if hasattr(error, name):
            setattr(error, name, number)
    made = again(error)
    assert type(made) is kind and made.args == error.args and str(made) == str(error) == "the text"
    for name in NAMES:
        assert getattr(made, name, None) == getattr(error, name, None), name
    assert again(kind("text")).__dict__ == kind("text").__dict__


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_tblib_can_unpickle_an_error(kind):
    # Dask loads tblib, which makes the object so.
    assert kind.__new__(kind, "the text").args == ("the text",)


def test_a_copy_of_an_error_of_the_system_has_its_error_number_and_file():
    error = errors.SystemRefused(2, "no such file", "/name")
    for made in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (made.errno, made.strerror, made.filename) == (2, "no such file", "/name")
        assert str(made) == str(error)
    assert copy.copy(errors.SystemRefused("text")).errno is None


def test_a_kernel_without_memory_is_no_memory(run):
    run("""
    import errno, resource
    import glebe
    from glebe import errors
    from glebe.swap import Store
    from glebe.volatile import VolatileBuffer
    addresses = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + (16 << 20), -1))
    plain = {"source": "plain"}
    makes = (glebe.Reserve, plain), (glebe.contig, plain), (Store, {}), (VolatileBuffer, {})
    for make, options in makes:
        try:
            make(64 << 20, **options)
        except errors.NoMemory as error:
            assert error.errno == errno.ENOMEM and "Cannot allocate memory" in str(error)
        else:
            raise AssertionError(make)
    """)
