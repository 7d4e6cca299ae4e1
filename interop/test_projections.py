"""What the reference's client expects of caches, counters and consumer groups."""

import signal
import time

import felix
import pytest

from conftest import NAMESPACE, PATIENCE, TENANT

SCOPE = (TENANT, NAMESPACE)


def cache(broker, name, *arguments):
    broker.run("cache", "create", name, *arguments)
    return (*SCOPE, name)


def eventually(probe):
    """What probe returns once it is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        got = probe()
        if got:
            return got
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("shards", ["1", "4"])
def test_cache(shared, client, shards):
    c = cache(shared, f"values{shards}", "--shards", shards)
    assert client.cache_get(*c, "never") is None
    assert client.cache_delete(*c, "never") is None
    for i in range(20):
        client.cache_put(*c, f"key{i}", b"%d" % i)
    client.cache_put(*c, "key3", b"")
    assert client.cache_get(*c, "key3") == b""
    assert [client.cache_get(*c, f"key{i}") for i in (0, 19)] == [b"0", b"19"]
    assert client.cache_delete(*c, "key0") == b"0"
    assert client.cache_get(*c, "key0") is None
    client.cache_put(*c, "short", b"x", ttl=0.2)
    assert client.cache_get(*c, "short") == b"x"
    eventually(lambda: client.cache_get(*c, "short") is None)


def test_unknown_cache_and_bad_keys(shared, client):
    with pytest.raises(felix.NotFoundError):
        client.cache_get(TENANT, NAMESPACE, "nowhere", "k")
    c = cache(shared, "strict")
    client.cache_put(*c, "k", b"kept")
    for key in ("", "x" * 5000):
        with pytest.raises(felix.FelixError):
            client.cache_put(*c, key, b"v")
    assert client.cache_get(*c, "k") == b"kept", "the client goes on after a refusal"


def test_counters(shared, client):
    c = cache(shared, "sums")
    assert client.counter_get(*c, "n") is None
    assert client.counter_add(*c, "n", 5) == 5
    assert client.counter_add(*c, "n", -7) == -2
    assert client.counter_get(*c, "n") == -2
    assert client.counter_add(*c, "big", 2**63 - 1) == 2**63 - 1
    with pytest.raises(felix.FelixError):
        client.counter_add(*c, "big", 1)
    assert client.counter_get(*c, "big") == 2**63 - 1


def changes(watch, n):
    got = []
    while len(got) < n:
        event = watch.recv(timeout=PATIENCE)
        assert event is not None, got
        got.append((event.key, event.value))
    return got


def test_watch(shared, client):
    c = cache(shared, "watched")
    client.cache_put(*c, "user:1", b"a")
    client.cache_put(*c, "other", b"b")
    with shared.client() as other:
        key = client.watch_cache(*c, felix.CacheWatchFilter.key("user:1"))
        prefix = client.watch_cache(*c, felix.CacheWatchFilter.prefix("user:"), retained=True)
        assert prefix.retained_count == 1
        replay = client.watch_cache(*c, felix.CacheWatchFilter.prefix(""), start=0)
        empty = client.watch_cache(*c, felix.CacheWatchFilter.prefix("none:"), retained=True)
        assert empty.retained_count == 0
        other.cache_put(*c, "user:2", b"c")
        other.cache_delete(*c, "user:1")
        assert changes(key, 1) == [("user:1", None)]
        assert changes(prefix, 3) == [("user:1", b"a"), ("user:2", b"c"), ("user:1", None)]
        assert changes(replay, 4) == [("user:1", b"a"), ("other", b"b"), ("user:2", b"c"), ("user:1", None)]
        other.cache_put(*c, "none:1", b"d", ttl=0.1)
        assert changes(empty, 2) == [("none:1", b"d"), ("none:1", None)], "an expiry is a delete"


def test_watch_from_an_offset(shared, client):
    c = cache(shared, "resumed")
    for i in range(5):
        client.cache_put(*c, f"k{i}", b"%d" % i)
    middle = client.watch_cache(*c, felix.CacheWatchFilter.prefix("k"), start=3)
    assert not middle.resnapshot
    assert changes(middle, 2) == [("k3", b"3"), ("k4", b"4")]
    tail = client.watch_cache(*c, felix.CacheWatchFilter.key("k1"), start=5)
    client.cache_put(*c, "k1", b"new")
    assert changes(tail, 1) == [("k1", b"new")]
    assert changes(middle, 1) == [("k1", b"new")]
    with pytest.raises(felix.FelixError):
        client.watch_cache(*c, felix.CacheWatchFilter.prefix("k"), start=1000)


def test_watch_after_compaction(broker):
    c = cache(broker, "compacted")
    with broker.client() as client:
        client.cache_put(*c, "kept", b"k")
        for i in range(2500):
            client.cache_put(*c, "hot", b"%08d" % i * 800)
        def resnapshot():
            client.cache_put(*c, "hot", b"z" * 6400)
            w = client.watch_cache(*c, felix.CacheWatchFilter.prefix(""), start=0)
            return w if w.resnapshot else None
        w = eventually(resnapshot)
        assert changes(w, 1)[0] == ("kept", b"k")
        assert client.cache_get(*c, "kept") == b"k"


def poll(client, stream, group="workers", **more):
    more.setdefault("wait", 0)
    return client.group_poll(TENANT, NAMESPACE, stream, 0, group, **more)


def nack(client, stream, record, group="workers"):
    try:
        client.group_nack(TENANT, NAMESPACE, stream, 0, group, record)
    except TypeError:
        client.group_nack(TENANT, NAMESPACE, stream, 0, group, record.offset)


def queue(broker, client, name, n):
    broker.stream(name, "--durable")
    for i in range(n):
        client.publish(TENANT, NAMESPACE, name, b"%d" % i)
    return name


def test_group(shared, client):
    s = queue(shared, client, "jobs", 4)
    first = poll(client, s, max_records=2)
    assert [(r.offset, r.payload, r.attempts) for r in first] == [(0, b"0", 1), (1, b"1", 1)]
    assert [r.offset for r in poll(client, s)] == [2, 3]
    assert poll(client, s, wait=0.2) == []
    client.group_ack(TENANT, NAMESPACE, s, 0, "workers", 0)
    client.group_ack(TENANT, NAMESPACE, s, 0, "workers", 0)
    nack(client, s, first[1])
    assert [(r.offset, r.attempts) for r in poll(client, s)] == [(1, 2)]
    with pytest.raises(felix.FelixError):
        client.group_ack(TENANT, NAMESPACE, s, 0, "workers", 99)
    assert [r.offset for r in poll(client, s, group="others")] == [0, 1, 2, 3]


def test_group_long_poll(shared, client):
    s = queue(shared, client, "late", 0)
    with shared.client() as other:
        import threading
        t = threading.Timer(0.3, lambda: other.publish(TENANT, NAMESPACE, s, b"x"))
        t.start()
        assert [r.payload for r in poll(client, s, wait=PATIENCE)] == [b"x"]
        t.join()


def test_dead_letters(shared, client):
    s = queue(shared, client, "poison", 2)
    for attempt in range(1, 6):
        (record,) = poll(client, s, max_records=1)
        assert (record.offset, record.attempts) == (0, attempt)
        nack(client, s, record)
    assert [r.offset for r in poll(client, s)] == [1]
    assert client.group_dead_letters(TENANT, NAMESPACE, s, 0, "workers") == [0]
    client.group_redrive(TENANT, NAMESPACE, s, 0, "workers", 0)
    assert client.group_dead_letters(TENANT, NAMESPACE, s, 0, "workers") == []
    for attempt in range(1, 6):
        (record,) = poll(client, s)
        assert record.attempts == attempt
        nack(client, s, record)
    client.group_discard(TENANT, NAMESPACE, s, 0, "workers", 0)
    assert client.group_dead_letters(TENANT, NAMESPACE, s, 0, "workers") == []


def test_redriven_and_discarded_records_are_done(shared, client):
    s = queue(shared, client, "letters", 3)
    scope = (TENANT, NAMESPACE, s, 0, "workers")
    for _ in range(5):
        for record in poll(client, s):
            nack(client, s, record)
    assert poll(client, s) == []
    assert client.group_dead_letters(*scope) == [0, 1, 2]
    client.group_discard(*scope, 1)
    client.group_discard(*scope, 1)
    client.group_redrive(*scope, 2)
    (record,) = poll(client, s)
    assert (record.offset, record.payload, record.attempts) == (2, b"2", 1)
    client.group_ack(*scope, 2)
    assert poll(client, s) == []
    assert client.group_dead_letters(*scope) == [0]
    with pytest.raises(felix.FelixError):
        client.group_redrive(*scope, 1)


def test_groups_that_are_refused(shared, client):
    s = queue(shared, client, "plain", 1)
    shared.stream("volatile")
    for stream, more in (("volatile", {}), ("nowhere", {}), (s, {"consumer": "c" * 129}), (s, {"group": "g" * 129})):
        with pytest.raises(felix.FelixError):
            poll(client, stream, **more)
    assert client.group_dead_letters(TENANT, NAMESPACE, s, 0, "nobody") == []
    with pytest.raises(felix.FelixError):
        client.group_ack(TENANT, NAMESPACE, s, 0, "nobody", 0)
    assert [r.offset for r in poll(client, s)] == [0], "the client goes on after a refusal"


def test_reclaim(shared, client):
    s = queue(shared, client, "owned", 3)
    with shared.client() as gone:
        assert len(poll(gone, s, max_records=2, consumer="c1")) == 2
    assert [(r.offset, r.attempts) for r in poll(client, s, consumer="c1", reclaim=True, max_records=2)] == [(0, 2), (1, 2)]
    assert [r.offset for r in poll(client, s, consumer="c1", reclaim=True)] == [2], "what this connection holds stays"


def test_groups_and_caches_survive_a_kill(broker):
    with broker.client() as client:
        s = queue(broker, client, "jobs", 100)
        c = cache(broker, "values")
        client.cache_put(*c, "k", b"v")
        client.counter_add(*c, "n", 7)
        for r in poll(client, s, max_records=100):
            if r.offset % 2:
                client.group_ack(TENANT, NAMESPACE, s, 0, "workers", r.offset)
    broker.stop(signal.SIGKILL)
    broker.start()
    with broker.client() as client:
        assert [r.offset for r in poll(client, s, max_records=100)] == list(range(0, 100, 2))
        assert client.cache_get(*c, "k") == b"v"
        assert client.counter_get(*c, "n") == 7
