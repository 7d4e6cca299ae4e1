"""What the reference's client expects of streams."""

import asyncio
import signal
import threading
import time

import felix
import pytest

from conftest import NAMESPACE, PATIENCE, TENANT


def publish(client, stream, payload, **more):
    return client.publish(TENANT, NAMESPACE, stream, payload, **more)


def subscribe(client, stream, start=None):
    return client.subscribe(TENANT, NAMESPACE, stream, start=start)


def take(subscription, n):
    events = []
    while len(events) < n:
        event = subscription.next_event(timeout=PATIENCE)
        assert event is not None, f"after {len(events)} of {n} events"
        events.append(event)
    return events


def numbered(n, first=0):
    return [b"record %06d" % i for i in range(first, first + n)]


@pytest.mark.parametrize("offer_alpn", [False, True])
def test_connect(shared, offer_alpn):
    with shared.client(offer_alpn=offer_alpn) as c:
        assert c.endpoints() == [shared.address]


def test_wrong_authority_is_refused(shared, broker):
    with pytest.raises(felix.FelixError):
        felix.Client(shared.address, tenant_id=TENANT, token=shared.token(), ca_file=broker.ca)


@pytest.mark.parametrize("token", ["", "x", "a.b.c"])
def test_wrong_token(shared, token):
    with pytest.raises(felix.AuthError):
        felix.Client(shared.address, tenant_id=TENANT, token=token, ca_file=shared.ca)


def test_token_of_another_broker(shared, broker):
    with pytest.raises(felix.AuthError):
        shared.client(token=broker.token())


def test_permissions(shared):
    name = shared.stream("guarded", "--durable")
    with shared.client(shared.token(f"stream.publish:stream:{TENANT}/{NAMESPACE}/{name}")) as c:
        assert publish(c, name, b"x") == 0
        with pytest.raises(felix.AuthError) as refused:
            subscribe(c, name, "earliest")
        assert refused.value.code == "forbidden"
        with pytest.raises(felix.AuthError):
            publish(c, "guarded2", b"x")
    with shared.client(shared.token(f"stream.subscribe:stream:{TENANT}/{NAMESPACE}/*")) as c:
        assert [e.payload for e in take(subscribe(c, name, "earliest"), 1)] == [b"x"]
        with pytest.raises(felix.AuthError):
            publish(c, name, b"x")


def test_unknown_stream(client):
    with pytest.raises(felix.NotFoundError) as refused:
        publish(client, "absent", b"x")
    assert (refused.value.code, refused.value.retry) == ("not_found", "retry_after")
    with pytest.raises(felix.NotFoundError):
        subscribe(client, "absent")
    assert client.stream_shards(TENANT, NAMESPACE, "absent") == 0


@pytest.mark.parametrize("ack", ["per_message", "per_batch", "none"])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_acknowledgements(shared, client, ack, key):
    name = shared.stream(f"acks-{ack.replace('_', '-')}-{'none' if key is None else key.decode() or 'empty'}", "--durable")
    events = subscribe(client, name, "latest")
    offsets = [publish(client, name, payload, key=key, ack=ack) for payload in numbered(20)]
    assert offsets == ([None] * 20 if ack == "none" else list(range(20)))
    got = take(events, 20)
    assert [e.payload for e in got] == numbered(20)
    assert [e.offset for e in got] == list(range(20))
    assert [e.skipped_before for e in got] == [0] * 20
    events.close()


def test_at_least_once(shared, client):
    name = shared.stream("least", "--durable")
    assert [publish(client, name, p, at_least_once=True) for p in numbered(5)] == list(range(5))


def test_in_memory(shared, client):
    name = shared.stream("memory")
    events = subscribe(client, name)
    assert [publish(client, name, p) for p in numbered(5)] == [None] * 5
    got = take(events, 5)
    assert [e.payload for e in got] == numbered(5)
    assert [e.offset for e in got] == [None] * 5


def test_sizes(shared, client):
    name = shared.stream("sizes", "--durable", "--max-record-bytes", "1MiB")
    sizes = [0, 1, 4095, 65536, 1 << 20]
    for n in sizes:
        publish(client, name, b"s" * n)
    with pytest.raises(felix.FelixError) as refused:
        publish(client, name, b"s" * ((1 << 20) + 1))
    assert (refused.value.code, refused.value.retry) == ("limit_exceeded", "fatal")
    assert publish(client, name, b"after") == len(sizes)
    assert [len(e.payload) for e in take(subscribe(client, name, "earliest"), 6)] == sizes + [5]


def test_starts(shared, client):
    name = shared.stream("starts", "--durable")
    for payload in numbered(10):
        publish(client, name, payload)
    for start, first in (("earliest", 0), (0, 0), (7, 7)):
        events = subscribe(client, name, start)
        assert [e.offset for e in take(events, 10 - first)] == list(range(first, 10))
        events.close()
    latest, none, tail = subscribe(client, name, "latest"), subscribe(client, name), subscribe(client, name, 10)
    publish(client, name, b"next")
    for events in (latest, none, tail):
        assert [(e.offset, e.payload) for e in take(events, 1)] == [(10, b"next")]
        assert events.next_event(timeout=0.05) is None
        assert not events.closed


@pytest.mark.parametrize("start", [11, 1 << 63, (1 << 64) - 1])
def test_in_the_future(shared, client, start):
    name = shared.stream("future", "--durable")
    with pytest.raises(felix.CursorError):
        subscribe(client, name, start)


def test_too_old(shared, client):
    name = shared.stream("old", "--durable", "--retention-bytes", "128KiB")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for _ in range(16):
            publish(client, name, b"o" * 16384)
        try:
            subscribe(client, name, 0).close()
        except felix.CursorError:
            break
    else:
        pytest.fail("retention removes nothing")
    first = take(subscribe(client, name, "earliest"), 1)[0].offset
    assert first > 0


def test_sharded(shared, client):
    name = shared.stream("wide", "--durable", "--shards", "4")
    assert client.stream_shards(TENANT, NAMESPACE, name) == 4
    keys = [b"key %d" % i for i in range(40)]
    for i, key in enumerate(keys):
        publish(client, name, b"%d" % i, key=key)

    def records(subscription, n):
        got = []
        while len(got) < n:
            item = subscription.next_event(timeout=PATIENCE)
            assert isinstance(item, felix.ShardRecord), item
            got.append(item)
        return got

    events = client.subscribe_sharded(TENANT, NAMESPACE, name, start="earliest")
    assert events.shards == 4
    got = records(events, 40)
    assert sorted(int(r.event.payload) for r in got) == list(range(40))
    by_shard = {s: [r.event.offset for r in got if r.shard == s] for s in range(4)}
    assert all(offsets == list(range(len(offsets))) for offsets in by_shard.values()), by_shard
    assert len({s for s, offsets in by_shard.items() if offsets}) > 1, "keys spread"
    handled = {s: offsets[len(offsets) // 2] for s, offsets in by_shard.items() if offsets}
    positions = events.positions()
    assert all(positions[s] == offsets[-1] for s, offsets in by_shard.items() if offsets)
    events.close()

    # Resuming after the last handled of each shard repeats and skips nothing.
    resumed = client.subscribe_sharded(TENANT, NAMESPACE, name, start="earliest", resume=handled)
    rest = records(resumed, sum(len(o) for o in by_shard.values()) - sum(handled[s] + 1 for s in handled))
    for s, offsets in by_shard.items():
        assert [r.event.offset for r in rest if r.shard == s] == [o for o in offsets if o > handled.get(s, -1)]
    resumed.close()


def test_many_subscriptions(shared, client):
    name = shared.stream("fan", "--durable")
    subscriptions = [subscribe(client, name, "earliest") for _ in range(50)]
    for payload in numbered(50):
        publish(client, name, payload)
    for events in subscriptions:
        assert [e.payload for e in take(events, 50)] == numbered(50)
        events.close()


def test_from_threads(shared, client):
    name = shared.stream("threads", "--durable", "--shards", "2")
    offsets, errors = [], []

    def run(i):
        try:
            for payload in numbered(100, 1000 * i):
                offsets.append((i % 2, publish(client, name, payload, key=b"even" if i % 2 else b"odd")))
        except felix.FelixError as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert not errors
    for key in (0, 1):
        mine = sorted(o for k, o in offsets if k == key)
        assert len(mine) == len(set(mine)) == 400


def test_asyncio(shared):
    name = shared.stream("asyncio", "--durable")

    async def main():
        async with await felix.AsyncClient.connect(shared.address, tenant_id=TENANT, token=shared.token(), ca_file=shared.ca) as c:
            events = await c.subscribe(TENANT, NAMESPACE, name, start="earliest")
            offsets = await asyncio.gather(*(c.publish(TENANT, NAMESPACE, name, p) for p in numbered(200)))
            assert sorted(offsets) == list(range(200))
            got = [await events.next_event(PATIENCE) for _ in range(200)]
            assert [e.offset for e in got] == list(range(200))
            assert sorted(e.payload for e in got) == numbered(200)
            await events.close()

    asyncio.run(main())


def test_stream_deleted(shared, client):
    name = shared.stream("doomed", "--durable")
    publish(client, name, b"x")
    events = subscribe(client, name, "earliest")
    take(events, 1)
    shared.run("stream", "rm", name, "--yes")
    assert events.next_event(timeout=PATIENCE) is None
    assert events.closed
    with pytest.raises(felix.NotFoundError):
        publish(client, name, b"x")


@pytest.mark.parametrize("idle", [False, True], ids=["busy", "idle"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])
def test_restart_neither_loses_nor_repeats(broker, how, idle):
    name = broker.stream("survivor", "--durable", "--fsync", "on_commit")
    with broker.client() as reader, broker.client() as writer:
        events = subscribe(reader, name, "earliest")
        written = []
        if not idle:
            written = numbered(300)
            for payload in written[:200]:
                publish(writer, name, payload)
            assert [e.payload for e in take(events, 100)] == written[:100]
            for payload in written[200:]:
                publish(writer, name, payload)
        broker.stop(how)
        broker.start()
        deadline = time.monotonic() + PATIENCE
        for payload in numbered(50, 1000):
            while True:
                try:
                    publish(writer, name, payload)
                    break
                except felix.FelixError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            written.append(payload)
        seen = [] if idle else written[:100]
        got = take(events, len(written) - len(seen))
        assert [e.offset for e in got] == list(range(len(seen), len(written)))
        assert [e.payload for e in got] == written[len(seen):]
        events.close()
