#!/usr/bin/env python3
"""Talks to a server of memcached's protocol through a Python client.

    scripts/client_talk.py pymemcache|pylibmc|django PORT [AUTHORITY]

Stores, reads, exchanges, counts and deletes values of many lengths under keys of many lengths, and
waits for one to expire. With AUTHORITY, a file of a certificate, pymemcache uses TLS. Exits with 3
if the client is missing.
"""

import ssl
import sys
import time

HOST = "127.0.0.1"
# Lengths of values in bytes: around 0, one page, two pages, and nearly the most of an item.
LENGTHS = [0, 1, 100, 4000, 4095, 4096, 4097, 8191, 8193, 100_000, 1_000_000]
KEY_MAX = 250
# A value that with its key exceeds the default limit of an item.
TOO_LONG = 1 << 20
# Seconds after which items expire, and after which they are surely gone. Items expire on whole
# seconds: one of 1 s could be gone at once.
EXPIRES, OVER = 2, 3.5


def check(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {short(got)} instead of {short(wanted)}")


def short(value):
    text = repr(value)
    return text if len(text) < 80 else f"{text[:70]}... ({len(text)} characters)"


def refused(what, error, call):
    """Exits with a message unless the call raises an error of this class."""
    try:
        got = call()
    except error:
        return
    sys.exit(f"{what}: {short(got)} instead of an error")


def bytes_of(length):
    return bytes(at * 7 % 256 for at in range(length % 251)) + b"v" * (length - length % 251)


def pymemcache(port, authority=None):
    from pymemcache.client.base import Client
    from pymemcache.exceptions import MemcacheClientError, MemcacheServerError

    tls = ssl.create_default_context(cafile=authority) if authority else None
    client = Client((HOST, port), default_noreply=False, timeout=20, tls_context=tls)
    client.flush_all()
    check("get of nothing", client.get("k"), None)
    check("add", client.add("k", b"1"), True)
    check("add again", client.add("k", b"2"), False)
    check("replace", client.replace("k", b"10"), True)
    check("append", client.append("k", b"1"), True)
    check("prepend", client.prepend("k", b"9"), True)
    check("get", client.get("k"), b"9101")
    check("incr", client.incr("k", 9), 9110)
    check("decr", client.decr("k", 9111), 0)
    value, number = client.gets("k")
    check("cas", client.cas("k", b"new", number), True)
    check("cas again", client.cas("k", b"newer", number), False)
    check("cas of nothing", client.cas("none", b"x", number), None)
    check("replace of nothing", client.replace("none", b"x"), False)
    check("delete", client.delete("k"), True)
    check("delete again", client.delete("k"), False)
    check("touch of nothing", client.touch("k"), False)
    values = {f"k{length}": bytes_of(length) for length in LENGTHS}
    check("set_many", client.set_many(values), [])
    check("get_many", client.get_many(list(values) + ["none"]), values)
    longest = "k" * KEY_MAX
    check("the longest key", (client.set(longest, b"v"), client.get(longest)), (True, b"v"))
    refused("a key too long", MemcacheClientError, lambda: client.set(longest + "k", b"v"))
    refused("a value too long", MemcacheServerError, lambda: client.set("k", b"v" * TOO_LONG))
    check("noreply", client.set("quiet", b"v", noreply=True), True)
    check("get after it", client.get("quiet"), b"v")
    check("noreply, and too long", client.set("k", b"v" * TOO_LONG, noreply=True), True)
    check("get after that", client.get("quiet"), b"v")
    client.set("short", b"v", expire=EXPIRES)
    client.set("touched", b"v", expire=EXPIRES)
    client.set("gone", b"v", expire=-1)
    check("touch", client.touch("touched", 1000), True)
    check("get of what is over", client.get("gone"), None)
    time.sleep(OVER)
    check("what expires", client.get_many(["short", "touched"]), {"touched": b"v"})
    check("stats", client.stats()[b"curr_items"] > 0, True)
    client.flush_all()
    check("get_many after flush_all", client.get_many(list(values)), {})
    client.quit()


def pylibmc(port):
    import pylibmc

    client = pylibmc.Client([f"{HOST}:{port}"], behaviors={"cas": True})
    client.flush_all()
    check("get of nothing", client.get("k"), None)
    check("add", client.add("k", "1"), True)
    check("add again", client.add("k", "2"), False)
    check("set of a number", client.set("n", 10), True)
    check("incr", client.incr("n", 5), 15)
    check("decr", client.decr("n", 6), 9)
    refused("incr of nothing", pylibmc.NotFound, lambda: client.incr("none"))
    value, number = client.gets("k")
    check("gets", value, "1")
    check("cas", client.cas("k", "new", number), True)
    refused("cas again", pylibmc.NotFound, lambda: client.cas("none", "x", number))
    check("cas of another", client.cas("k", "newer", number), False)
    check("append", client.append("k", "!"), True)
    check("prepend", client.prepend("k", "?"), True)
    check("get", client.get("k"), "?new!")
    check("delete", client.delete("k"), True)
    check("delete again", client.delete("k"), False)
    values = {f"k{length}": bytes_of(length) for length in LENGTHS}
    check("set_multi", client.set_multi(values), [])
    check("get_multi", client.get_multi(list(values) + ["none"]), values)
    check("delete_multi", client.delete_multi(list(values)[:2]), True)
    check("get_multi of fewer", len(client.get_multi(list(values))), len(values) - 2)
    longest = "k" * KEY_MAX
    check("the longest key", (client.set(longest, [1, {}]), client.get(longest)), (True, [1, {}]))
    refused("a value too long", pylibmc.Error, lambda: client.set("k", b"v" * TOO_LONG))
    client.set("short", "v", time=EXPIRES)
    client.set("touched", "v", time=EXPIRES)
    check("touch", client.touch("touched", 1000), True)
    time.sleep(OVER)
    check("what expires", client.get_multi(["short", "touched"]), {"touched": "v"})
    client.flush_all()
    check("get_multi after flush_all", client.get_multi(list(values)), {})
    client.disconnect_all()


def django(port):
    from django.conf import settings

    backends = {"pymemcache": "PyMemcacheCache", "pylibmc": "PyLibMCCache"}
    found = {}
    for module, backend in backends.items():
        try:
            __import__(module)
        except ModuleNotFoundError:
            continue
        backend = f"django.core.cache.backends.memcached.{backend}"
        found[module] = {"BACKEND": backend, "LOCATION": f"{HOST}:{port}", "KEY_PREFIX": module}
    if not found:
        raise ModuleNotFoundError("neither pymemcache nor pylibmc", name="pymemcache")
    settings.configure(CACHES={"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
                               **found})
    from django.core.cache import InvalidCacheKey, caches

    for name in found:
        cache = caches[name]
        cache.clear()
        check("get of nothing", cache.get("k", "default"), "default")
        check("add", cache.add("k", [1, {"a": None}]), True)
        check("add again", cache.add("k", 2), False)
        check("get", cache.get("k"), [1, {"a": None}])
        check("get_or_set", cache.get_or_set("made", lambda: "new", 100), "new")
        cache.set("n", 1)
        check("incr", cache.incr("n", 9), 10)
        check("decr", cache.decr("n"), 9)
        refused("incr of nothing", ValueError, lambda: cache.incr("none"))
        check("incr_version", cache.incr_version("made"), 2)
        check("get of it", cache.get("made", version=2), "new")
        values = {f"k{length}": bytes_of(length) for length in LENGTHS if length < 1_000_000}
        check("set_many", cache.set_many(values), [])
        check("get_many", cache.get_many(list(values) + ["none"]), values)
        cache.delete_many(list(values)[:2])
        check("get_many of fewer", len(cache.get_many(list(values))), len(values) - 2)
        refused("a key too long", InvalidCacheKey, lambda: cache.set("k" * KEY_MAX, 1))
        cache.set("short", "v", EXPIRES)
        cache.set("for-ever", "v", None)
        cache.set("over", "v", 0)
        cache.set("touched", "v", EXPIRES)
        check("touch", cache.touch("touched", 1000), True)
        check("get of what is over", cache.get("over"), None)
        time.sleep(OVER)
        check("what expires", cache.get_many(["short", "for-ever", "touched"]),
              {"for-ever": "v", "touched": "v"})
        check("delete", (cache.delete("k"), cache.delete("k")), (True, False))
        cache.clear()
        check("has_key after clear", cache.has_key("touched"), False)
        cache.close()


def main():
    talks = {"pymemcache": pymemcache, "pylibmc": pylibmc, "django": django}
    try:
        talks[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
    except ModuleNotFoundError as missing:
        print(f"there is no {missing.name}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
