"""Leases of a daemon that these tests start, by the command that cargo built. The memory comes from
the machine's pool of huge pages; tests of other programs that use the pool wait meanwhile."""

import errno
import fcntl
import json
import mmap
import os
import pathlib
import pickle
import subprocess
import time
import urllib.request

import numpy as np
import pytest

import glebe
from conftest import PAGE
from glebe import errors

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"
BRICK = 2 << 20
ROOT = pathlib.Path(__file__).parents[3]


def command():
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [folder / profile / "glebe" for profile in ("debug", "release")]
    found = next((path for path in built if path.exists()), None)
    return found or pytest.skip(f"skipped: cargo has built no {built[0]}")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """Runs a daemon. Returns its socket, the bytes that it can lend, and the URL of its metrics."""
    glebe_command = command()
    if not os.path.exists(POOL):
        pytest.skip(f"skipped: no {POOL}")
    folder = tmp_path_factory.mktemp("daemon")
    path = str(folder / "leases")
    words = ["serve", "--no-stats", "--leases", "-m", "64", "-s", str(folder / "cache")]
    words += ["--lease-socket", path, "--lease-zeroed", "4M", "--lease-notice", "400"]
    words += ["--metrics", "127.0.0.1:0"]
    with open(folder / "errors", "w+") as wrong:
        turn = os.open(POOL, os.O_RDONLY)
        fcntl.flock(turn, fcntl.LOCK_EX)
        daemon = subprocess.Popen([glebe_command, *words], stdout=subprocess.PIPE, stderr=wrong)
        try:
            said = [daemon.stdout.readline() for _ in range(4)]
            if not all(said):
                wrong.seek(0)
                text = wrong.read()
                # Without free pages, only root can have some.
                (pytest.skip if "nr_hugepages" in text else pytest.fail)(f"skipped: {text}")
            yield path, int(said[0].split()[0]) << 20, said[3].decode().split()[-1]
        finally:
            daemon.terminate()
            daemon.wait(60)
            daemon.stdout.close()
            os.close(turn)


@pytest.fixture
def lease(daemon):
    """Returns `glebe.lease` for the daemon, once nobody holds any of its memory."""
    socket = daemon[0]

    def lease(size, **options):
        return glebe.lease(size, socket=socket, **options)

    words = [command(), "leases", "--socket", socket, "--openmetrics"]
    for _ in range(1000):
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        if all(f"glebe_lease_{name}_bytes 0\n" in said for name in ("held", "returning")):
            return lease
        time.sleep(0.01)
    pytest.fail(f"memory of an ended lease is not back: {said}")


def test_a_lease_is_a_writable_buffer_of_zeros(lease):
    with lease("3M") as memory:
        assert len(memory) == memory.nbytes == 2 * BRICK and memory.number > 0
        array = np.frombuffer(memory, np.uint8)
        assert not array.any() and array.ctypes.data == memory.address
        array[-1] = 7
        with memoryview(memory) as view:
            assert not view.readonly and view[2 * BRICK - 1] == 7
        with pytest.raises(BufferError, match="1 arrays or views of the lease"):
            memory.close()
        del array
    for ended in (memory.runs, memory.files, memory.recalled, lambda: memoryview(memory)):
        with pytest.raises(ValueError, match="the lease was closed"):
            ended()
    memory.close()
    with lease(2 * BRICK) as memory:
        assert not np.frombuffer(memory, np.uint8).any()


def test_lists_show_names_and_numbers(lease, daemon, monkeypatch):
    monkeypatch.setenv("GLEBE_LEASES", daemon[0])
    monkeypatch.setattr("sys.argv", ["/a/program.py", "x"])
    with lease(1, name="a name") as named, glebe.lease(1) as other:
        words = [command(), "leases", "--json"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        found = {row["lease"]: row["name"] for row in json.loads(said)}
        assert found == {named.number: "a name", other.number: "program.py"}


def test_runs_cover_the_lease(lease):
    with lease(5 * BRICK) as memory:
        runs = memory.runs()
        assert sum(pages for _, pages, _ in runs) * PAGE == 5 * BRICK
        starts = np.cumsum([0] + [pages for _, pages, _ in runs])[: len(runs)]
        assert [first for first, _, _ in runs] == list(starts)
        assert memory.physical == (None if runs[0][2] is None else runs[0][2] * PAGE)
    try:
        memory = lease("8M", contiguous=True, align="4M")
    except errors.NoMemory as refused:
        assert "longest free run" in str(refused)
        return
    [(first, pages, frame)] = memory.runs()
    assert (first, pages * PAGE) == (0, 4 * BRICK) and frame * PAGE % (2 * BRICK) == 0
    memory.close()


def test_files_are_passed_on(lease):
    with lease(3 * BRICK, one_file=True) as memory:
        with mmap.mmap(memory.fileno(), 3 * BRICK) as other:
            other[3 * BRICK - 1] = 9
        assert memory.files() == [memory.fileno()]
        assert memoryview(memory)[-1] == 9
        script = "import os, sys; print(os.fstat(int(sys.argv[1])).st_size)"
        words = ["python3", "-c", script, str(memory.fileno())]
        said = subprocess.run(words, pass_fds=memory.files(), capture_output=True, check=True)
        assert int(said.stdout) == 3 * BRICK
    with lease(3 * BRICK) as memory:
        assert len(memory.files()) == 3
        with pytest.raises(ValueError, match="3 files: one_file=True"):
            memory.fileno()


def test_what_cannot_be_had_is_refused(lease, daemon):
    with pytest.raises(errors.NoMemory) as refused:
        lease("1T")
    assert refused.value.errno == errno.ENOMEM
    assert 0 < refused.value.available == refused.value.limit <= daemon[1]
    wrong = ({"size": 0}, {"size": 1, "align": 3}, {"size": 1, "node": 77}, {"size": 1, "node": 2**32 - 1})
    for options in wrong:
        with pytest.raises(errors.BadArgument) as refused:
            lease(**options)
        assert refused.value.errno == errno.EINVAL and refused.value.limit is not None
    for size in ("", "much", "2.5", "-1"):
        with pytest.raises(ValueError, match="size"):
            lease(size)
    for size in (-1, 1 << 64):
        with pytest.raises(OverflowError):
            lease(size)
    for size in (1.5, None, b"2M"):
        with pytest.raises(TypeError):
            lease(size)
    with pytest.raises(ValueError, match="align"):
        lease(1, align="many")
    with pytest.raises(ValueError, match="wait"):
        lease(1, wait=1e300)
    with lease(1, revocable=True) as memory:
        for timeout in (float("nan"), 0, -1):
            assert memory.recalled(timeout) is None
        with pytest.raises(ValueError, match="timeout"):
            memory.recalled(1e300)
        assert memory.recalled(0.25) is None


def test_no_daemon_is_an_error_of_the_system(tmp_path):
    with pytest.raises(errors.SystemRefused, match="glebe serve --leases") as refused:
        glebe.lease("2M", socket=tmp_path / "none")
    assert refused.value.errno == errno.ENOENT and isinstance(refused.value, OSError)


def test_a_recalled_lease_reads_as_zeros(run, lease, daemon):
    run(RECALLED, daemon[0], str(daemon[1]))


def test_a_lease_that_is_gone_is_not_taken_for_one_that_was_asked_for(lease, daemon):
    memory = lease(daemon[1], revocable=True)
    with pytest.raises(errors.WouldWait) as refused:
        lease("2M", wait=0)
    assert refused.value.errno == errno.EAGAIN
    lease("2M", wait=60).close()
    with pytest.raises(errors.Purged, match="took this memory back"):
        memory.recalled()
    memory.close()


RECALLED = """
import os, socket, sys, threading, time
import numpy as np
import glebe
from glebe import errors
path, size = sys.argv[1], int(sys.argv[2])
memory = glebe.lease(size, revocable=True, socket=path)
array = np.frombuffer(memory, np.uint8)
array[:] = 7
assert memory.recalled() is None
asked = []
def wait():
    try:
        asked.append(memory.recalled(timeout=None))
    except errors.Purged:
        asked.append(0)
waiting = threading.Thread(target=wait)
waiting.start()
child = os.fork()
if child == 0:
    # The child's memory is the same, and so are its zeros.
    try:
        while array.any():
            time.sleep(0.01)
        array[:] = 5
        os._exit(0)
    except BaseException as error:
        print(error)
        os._exit(1)
try:
    glebe.lease("2M", socket=path, wait=0)
    raise AssertionError("there was memory left")
except errors.WouldWait as refused:
    assert refused.errno == 11
waiting.join()
assert len(asked) == 1 and 0 <= asked[0] <= 0.4, asked
try:
    while memory.recalled(1) is None:
        pass
    raise AssertionError("asked twice")
except errors.Purged:
    pass
while array.any():
    time.sleep(0.01)
array[:] = 5
assert (array == 5).all()
# A system call reads the zeros too, or fails.
one, other = socket.socketpair()
one.send(array[:10])
assert os.waitpid(child, 0)[1] == 0
del array
memory.close()
while True:
    try:
        glebe.lease("2M", socket=path).close()
        break
    except errors.WouldWait:
        time.sleep(0.01)
"""


def test_a_forked_child_shares_the_memory_and_reads_zeros_after_its_end(run, lease, daemon):
    run(FORKED, daemon[0])


FORKED = """
import os, sys, time
import numpy as np
import glebe
from glebe import errors
memory = glebe.lease("4M", socket=sys.argv[1])
array = np.frombuffer(memory, np.uint8)
child = os.fork()
if child == 0:
    try:
        view = memoryview(memory)
        view[0] = 3
        try:
            memory.recalled()
            os._exit(2)
        except errors.Forked:
            pass
        # The parent ends the lease: the same touches find zeros.
        while view[0]:
            time.sleep(0.01)
        array[:] = 1
        assert int(array.sum()) == array.size
        other = glebe.lease("2M", socket=sys.argv[1])
        other.close()
        view.release()
        del array
        memory.close()
        os._exit(0)
    except BaseException as error:
        print("child:", repr(error), flush=True)
        os._exit(1)
while array[0] != 3:
    time.sleep(0.01)
del array
memory.close()
status = os.waitpid(child, 0)[1]
assert status == 0, status
"""


def test_a_wait_ends_with_a_signal_or_with_close(run, lease, daemon):
    run(WAITING, daemon[0])


WAITING = """
import signal, sys, threading
import glebe
memory = glebe.lease("2M", revocable=True, socket=sys.argv[1])
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
try:
    memory.recalled(None)
    raise AssertionError("nobody asked")
except KeyboardInterrupt:
    pass
ended = []
def wait():
    try:
        memory.recalled(None)
    except ValueError as error:
        ended.append(str(error))
waiting = threading.Thread(target=wait)
waiting.start()
memory.close()
waiting.join()
assert "closed" in ended[0]
"""


def test_a_later_handler_of_signals_is_noticed(run, lease, daemon):
    run(COVERED, daemon[0])


COVERED = """
import faulthandler, sys
import glebe
from glebe import errors
glebe.lease("2M", socket=sys.argv[1]).close()
faulthandler.enable()
try:
    glebe.lease("2M", socket=sys.argv[1])
    raise AssertionError("a touch of memory that is taken would kill")
except errors.Unsupported as refused:
    assert "SIGBUS" in str(refused)
"""


def test_a_shared_cache_lives_in_idle_memory_until_a_lease_needs_it(daemon, lease):
    socket, length, _metrics = daemon
    cache = glebe.shared_cache("tiles", length, socket=socket)
    other = glebe.shared_cache("tiles", socket=socket)
    assert cache.of_daemon and other.nbytes == cache.nbytes
    kept = [n for n in range(3000) if cache.put(n, b"%08d" % n * 1000)]
    assert len(kept) > 1000
    assert all(other.get(n) in (None, b"%08d" % n * 1000) for n in kept)
    assert sum(n in other for n in kept) > 1000
    with lease(length) as memory:
        assert not any(memoryview(memory)), "a cache's bytes in a lease"
        assert all(other.get(n) is None for n in kept)
        assert not cache.put("key", b"value")
    child = os.fork()
    if child == 0:
        os._exit(0 if other.get("key") is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    again = pickle.loads(pickle.dumps(cache))
    assert again.of_daemon and again.nbytes == cache.nbytes
    cache.end()


def test_prometheus_own_parser_reads_the_metrics(daemon):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(daemon[2], headers=accept)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers.get_content_type() == "application/openmetrics-text"
        families = list(parser.text_string_to_metric_families(answer.read().decode()))
    kinds = {family.name: family.type for family in families}
    assert kinds["glebe_serve_commands"] == kinds["glebe_lease_leased"] == "counter"
    assert kinds["glebe_reserve_grant_seconds"] == "histogram"
    assert kinds["glebe_lease_held_bytes"] == "gauge"
    assert all(family.documentation and family.samples for family in families)


def test_all_memory_is_leased_again_and_again(lease, daemon):
    for _ in range(20):
        with lease(daemon[1] - 2 * BRICK, wait=60):
            pass
