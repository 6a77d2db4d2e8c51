"""Stands in for Mooncake's store: maps the files that it is given, and fails as the file `mode` of
the folder `$DOUBLE` says. The file `log` there has a line for each call."""

import __main__
import ctypes
import mmap
import os
import sys
import threading
import time

DOUBLE = os.environ["DOUBLE"]
PAGE = 2 << 20


def mode():
    with open(f"{DOUBLE}/mode") as file:
        return file.read().split()


def note(*words):
    with open(f"{DOUBLE}/log", "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def waits(word):
    while word in mode():
        time.sleep(0.02)


class MooncakeDistributedStore:
    def __init__(self):
        self.segments = {}
        thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
        thread.start()
        note("thread", thread.native_id)

    def setup(self, host, metadata, segment_bytes, buffer_bytes, protocol, devices, master):
        note("setup", host, metadata, segment_bytes, protocol, master)
        if "version" in mode():
            line = "E1129 22:29:45.5 7 client.cpp:1] Version mismatch: server=9 client=0"
            print(line, file=sys.stderr, flush=True)
            return -1
        if "silent" in mode():
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)
        if "slow-setup" in mode():
            time.sleep(1000)
        print("the package prints")
        return 0

    def get_hostname(self):
        return "double:1"

    def is_exist(self, key):
        if "slow-check" in mode():
            note("check")
        waits("slow-check")
        if "twice" in mode():
            __main__.say(0, "ok", "second", "answer")
            note("twice")
        return -900 if "dead" in mode() else 0

    def mount_segment(self, path, size, offset=0, protocol="tcp", location=""):
        waits("slow-mount")
        if "crash" in mode():
            os.abort()
        if "refuse" in mode():
            return {"ret": -704, "segment_ids": []}
        file = os.open(path, os.O_RDWR)
        memory = mmap.mmap(file, size)
        os.close(file)
        for at in range(0, size, PAGE):
            assert memory[at : at + 1] == b"\0", "the memory is not new"
            memory[at : at + 5] = b"value"
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(view)
        del view
        name = f"{address:x}-{len(self.segments)}"
        self.segments[name] = memory
        note("mount", f"{address:x}")
        return {"ret": 0, "segment_ids": [name]}

    def unmount_segment(self, names, grace_period_seconds=0):
        assert grace_period_seconds == 0
        if "hang" in mode():
            time.sleep(1000)
        if "dead" in mode():
            return -900
        for name in names:
            assert self.segments[name][:5] == b"value", "the memory was taken before"
            if "leak" not in mode():
                self.segments.pop(name).close()
            note("unmount", name)
        return 0
