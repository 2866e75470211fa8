"""A replica is ready once an own beacon came back: anybody else's shows nothing of its own way to the log."""

from __future__ import annotations

from events.codec import dump
from events.model.signal import Beacon
from tests.support.lookup_http import browser, service


async def test_only_an_own_beacon_that_came_back_makes_a_replica_ready() -> None:
    made = service()
    made.feed.state.ends = {0: 0}
    view, nonce = made.view, b"n" * 16

    def beacon(offset: int, reader: str, of: bytes) -> None:
        view.apply_signal(offset, dump(Beacon(reader=reader, nonce=of)), 0)

    async with browser(made) as http:

        async def ready() -> bool:
            return (await http.get("/readyz")).status_code == 200

        assert not await ready()
        beacon(0, "somebody", b"x" * 16)
        assert not await ready()
        beacon(1, view.reader, b"y" * 16)
        assert not await ready(), "its name alone, as of an earlier process"
        view.book.began(nonce, 0)
        assert not await ready()
        beacon(2, view.reader, nonce)
        assert await ready()
        beacon(3, "somebody", b"z" * 16)
        assert await ready()
        view.signals_truncated()
        assert not await ready()
