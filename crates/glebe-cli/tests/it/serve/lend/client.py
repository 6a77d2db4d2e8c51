"""A client of Mooncake's store: `put` stores values, `read` reads them until the next line."""

import hashlib
import json
import sys
import threading

from mooncake.store import MooncakeDistributedStore

KEYS, LENGTH = 96, 1 << 18


def value(nth):
    return hashlib.sha256(b"%d" % nth).digest() * (LENGTH // 32)


store = MooncakeDistributedStore()
if store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 32 << 20, "tcp", "", sys.argv[1]) != 0:
    sys.exit("no store")
values = [value(nth) for nth in range(KEYS)]


def say(**what):
    print(json.dumps(what), flush=True)


def read(stopped):
    seen = {"hits": 0, "misses": 0, "bad": 0}
    while not stopped.is_set():
        for nth in range(KEYS):
            got = store.get(f"key{nth}")
            kind = "misses" if not got else "hits" if got == values[nth] else "bad"
            seen[kind] += 1
    say(**seen)


reading = None
for line in sys.stdin:
    if line == "put\n":
        for nth in range(KEYS):
            store.remove(f"key{nth}")
        say(stored=sum(store.put(f"key{nth}", values[nth]) == 0 for nth in range(KEYS)))
    elif line == "read\n":
        stopped = threading.Event()
        reading = threading.Thread(target=read, args=(stopped,))
        reading.start()
    else:
        stopped.set()
        reading.join()
store.close()
