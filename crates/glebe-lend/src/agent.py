"""The helper process of `glebe lend`: mounts files as segments of a Mooncake Store.

Standard input has one command a line, standard output one answer a line:

    N mount PATH BYTES    ->  N ok ID
    N unmount ID          ->  N ok
    N check               ->  N ok          the master answers
                              N error CODE TEXT

The first answer has the number 0 and comes without a command: `ok VERSION HOST` once the store is
set up, else `error import TEXT` or `error setup TEXT`. The code `mapped` means that memory is still
mapped although its segment has ended, or never began.
"""

import ctypes
import importlib.metadata
import os
import sys
import threading

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
PROT_NONE, MAP_PRIVATE, MAP_ANONYMOUS = 0, 0x2, 0x20
MAP_NORESERVE, MAP_FIXED_NOREPLACE = 0x4000, 0x100000
BUFFER = 1 << 20  # for gets and puts of this process, which makes none

_, _, parent, host, metadata, protocol, master = sys.argv

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
if os.getppid() != int(parent):
    # Else the lender has ended, and nobody reads this.
    sys.exit("the lender is not its parent: a script that --python names must exec Python")

# The package may print; its lines must not mix with the answers.
answers = os.fdopen(os.dup(1), "w", errors="backslashreplace")
os.dup2(2, 1)
lock = threading.Lock()


def say(number, *words):
    line = " ".join([str(number), *(" ".join(str(word).split()) for word in words)])
    with lock:
        answers.write(line + "\n")
        answers.flush()


def version():
    names = (it.metadata["Name"] or "" for it in importlib.metadata.distributions())
    name = next((name for name in names if name.startswith("mooncake")), None)
    return importlib.metadata.version(name) if name else "unknown"


try:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    for call in (store.mount_segment, store.unmount_segment, store.setup, store.is_exist):
        assert callable(call)
except BaseException as error:
    say(0, "error", "import", f"{type(error).__name__}: {error}")
    sys.exit(1)
try:
    refused = store.setup(host, metadata, 0, BUFFER, protocol, "", master)
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
if refused != 0:
    say(0, "error", "setup", f"the store's setup gave {refused}")
    os._exit(1)
say(0, "ok", version(), store.get_hostname())


def mapped(file):
    """Returns the mappings of a file, given by its stat, as (address, length)."""
    which = [f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}", str(file.st_ino)]
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split()
            if words[3:5] == which:
                start, end = (int(at, 16) for at in words[0].split("-"))
                found.append((start, end - start))
    return found


def reserved(start, length):
    """Takes an address range without memory, so that no later segment gets it. False if it is
    mapped."""
    flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE
    return libc.mmap(start, length, PROT_NONE, flags, -1, 0) == start


segments = {}


def mount(number, path, length):
    file = os.stat(path)
    try:
        answer = store.mount_segment(path, int(length), 0, protocol, "")
        ids = list(answer.get("segment_ids", []))
        ranges = mapped(file)
    except Exception as error:
        # Nobody knows what is mounted.
        return say(number, "error", "mapped", f"mount_segment: {type(error).__name__}: {error}")
    if answer["ret"] == 0 and ids and ranges:
        segments[ids[0]] = ids, ranges
        say(number, "ok", ids[0])
    elif ranges:
        say(number, "error", "mapped", f"mount_segment gave {answer['ret']} and left a mapping")
    else:
        say(number, "error", answer["ret"], "mount_segment")


def unmount(number, name):
    ids, ranges = segments.pop(name)
    answer = store.unmount_segment(ids, 0)
    if answer != 0:
        say(number, "error", answer, "unmount_segment")
    elif all(reserved(*each) for each in ranges):
        say(number, "ok")
    else:
        say(number, "error", "mapped", "unmount_segment gave 0, but the memory is still mapped")


def check(number):
    found = store.is_exist("glebe lend")
    say(number, *(("error", found, "is_exist") if found < 0 else ("ok",)))


def run(command, number, *words):
    try:
        command(number, *words)
    except Exception as error:
        say(number, "error", "python", f"{type(error).__name__}: {error}")


commands = {"mount": mount, "unmount": unmount}
for line in sys.stdin.buffer:
    number, command, *words = line.decode().split()
    if command == "check":
        # A master that answers late must not delay an unmount.
        threading.Thread(target=run, args=(check, number)).start()
    else:
        run(commands[command], number, *words)
os._exit(0)
