"""LMCache's cache events, in bytes of its own emitter, and what the index claims of its servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.errors import DecodeError
from events.hooks.engine_adapter import adapter_of
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_port import Confirmed, Unanswered
from events.hooks.life_file import LifeFile
from events.hooks.lmcache import LmcacheReader, blake3_chunk_hash, decode_request
from events.hooks.lmcache_door import LmcacheDoor
from events.hooks.lmcache_source import LmcacheIntake, LmcacheSource, Offered
from events.identity import bound_salt_hmac, pack_tokens, profile_digest, root_parent
from events.ids import CopyState, Inventory, Tier
from tests.support.bridged_stream import Bridged, attached
from tests.support.folded_stream import CONTENT, RING
from tests.support.lmcache_events import CHUNK, recorded

RECORDED = recorded()
A, B, C = (RECORDED.prompts[name] for name in "ABC")
CONFIG = EngineConfig(
    engine="lmcache",
    content=CONTENT.model_copy(update={"block_tokens": CHUNK}),
    connectors=("LMCacheServer",),
    durable_ids={Tier.DISK: "w0-files"},
)


def ids(tokens: Sequence[int], domain: str = "default") -> list[bytes]:
    profile = profile_digest(CONTENT.model_copy(update={"block_tokens": CHUNK}))
    return RING[domain].hasher().chain(root_parent(profile), pack_tokens(tokens), CHUNK)


class Server:
    """One LMCache server as a bridge hears of it: all that `kept` holds can be read again, as in Kafka."""

    def __init__(self, name: str = "lmc-0", *, kept: bool = True, model: str = "tiny") -> None:
        self.intake = LmcacheIntake()
        self.source = LmcacheSource(name, self._to_end if kept else None)
        self.intake.add(self.source)
        self.adapter = adapter_of("LMCache", model)
        self.waiting: list[bytes] = []

    async def _to_end(self, _: float) -> bool:
        while self.waiting:
            self.intake.offer(self.waiting.pop(0))
        return True

    async def attach(self, file: Path | None = None) -> Bridged:
        life_file = None if file is None else LifeFile(file)
        return await attached(self.source, CONFIG, adapter=self.adapter, life_file=life_file)


async def read(*bodies: bytes, server: str = "lmc-0", model: str = "tiny") -> Bridged:
    one = Server(server, model=model)
    bridge = await one.attach()
    one.waiting.extend(bodies)
    await bridge.bridge.confirm(1.0)
    return bridge


def batch(seq: int, *entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "lmc-0",
        "incarnation": 1,
        "seq": seq,
        "event_type": "store",
        "tier": "l1",
        "backend": "dram",
        "entries": list(entries),
    } | changes


def entry(tokens: Sequence[int], chunk: int, *, salt: str = "", **changes: Any) -> dict[str, Any]:
    """The object of one chunk of a prompt, as its only rank stores it."""
    chunk_hash, before = blake3_chunk_hash()
    for index in range(chunk + 1):
        before = chunk_hash(before, list(tokens[index * CHUNK : (index + 1) * CHUNK]))
    key = {
        "chunk_hash_hex": before.hex(),
        "model_name": "tiny",
        "kv_rank": 1 << 24 | 1 << 8,
        "cache_salt": salt,
    }
    whole = {"token_ids": list(tokens[chunk * CHUNK : (chunk + 1) * CHUNK]), "token_offset": chunk * CHUNK}
    return {"key": key, "size_bytes": 1} | whole | changes


def body(*batches: dict[str, Any]) -> bytes:
    return json.dumps({"batches": batches}).encode()


class TestRecorded:
    async def test_a_prompt_s_chunks_are_named_as_their_proven_chain(self) -> None:
        bridge = await read(*RECORDED.upto("A stored"))
        assert bridge.folded.credited("cpu") == set(ids(A))
        assert bridge.folded.state.unknown_events == 0
        assert bridge.folded.stream.orphan_counts() == (0, 0)
        assert await bridge.confirmed()

    async def test_chunks_that_go_on_from_another_prompt_s_find_their_predecessor_by_the_hash(self) -> None:
        """Only B's own two chunks were stored, in one batch with another prompt's."""
        bridge = await read(*RECORDED.upto("B and C stored"))
        assert bridge.folded.credited("cpu") == {*ids(A), *ids(B), *ids(C)}

    async def test_a_salt_is_another_tenant_s_though_the_hashes_are_the_same(self) -> None:
        server = Server()
        bridge = await server.attach()
        server.waiting.extend(RECORDED.upto("A stored for tenant-a"))
        await bridge.bridge.confirm(1.0)
        assert bridge.folded.stream.orphan_counts() == (0, 4)
        assert bridge.folded.credited("cpu") == {*ids(A), *ids(B), *ids(C)}

    async def test_another_model_s_objects_are_another_stream_s(self) -> None:
        mine = await read(*RECORDED.upto("C stored for another model"))
        other = await read(*RECORDED.upto("C stored for another model"), model="other")
        assert mine.folded.stream.orphan_counts() == (0, 4)
        assert other.folded.credited("cpu") == set(ids(C))

    async def test_what_lies_behind_is_a_tier_of_its_own(self) -> None:
        bridge = await read(*RECORDED.upto("A's first chunk deleted from the files"))
        assert set(bridge.folded.copies("disk")) == set(ids(A)[1:])
        assert bridge.folded.state.holders["disk"].inventory is Inventory.PARTIAL
        assert not bridge.folded.stream.inventory_known()

    async def test_an_object_stored_twice_is_gone_when_it_is_evicted_once(self) -> None:
        bridge = await read(*RECORDED.upto("A's last chunk evicted"))
        assert bridge.folded.credited("cpu") == {*ids(A)[:3], *ids(B), *ids(C)}

    async def test_a_chunk_is_whole_while_all_ranks_have_their_part(self) -> None:
        step = "one rank's object of C's first chunk evicted"
        assert (
            await read(*RECORDED.upto("C stored by both ranks", "lmc-1"), server="lmc-1")
        ).folded.credited("cpu") == set(ids(C))
        bridge = await read(*RECORDED.upto(step, "lmc-1"), server="lmc-1")
        assert bridge.folded.credited("cpu") == {ids(C)[1]}

    async def test_a_restart_empties_the_memory_and_leaves_what_lies_behind_unknown(self) -> None:
        server = Server()
        bridge = await server.attach()
        server.waiting.extend(RECORDED.upto("A's first chunk deleted from the files"))
        await bridge.bridge.confirm(1.0)
        server.waiting.extend(RECORDED.upto("restarted, B stored")[-1:])
        assert isinstance(await bridge.bridge.confirm(1.0), Unanswered)
        assert bridge.bridge.counts.lives == 2
        assert bridge.folded.credited("cpu") == set(ids(B))
        assert bridge.folded.state.holders["disk"].inventory is Inventory.PARTIAL
        assert isinstance(await bridge.bridge.confirm(1.0), Confirmed)

    async def test_a_bridge_that_comes_late_takes_the_last_life_as_its_first(self) -> None:
        server = Server()
        server.waiting.extend(RECORDED.upto("restarted, B stored"))
        bridge = await server.attach()
        assert len(bridge.hook.lives) == 1
        assert bridge.folded.credited("cpu") == set(ids(B))
        assert not bridge.folded.copies("disk")

    async def test_a_bridge_that_comes_back_knows_whether_it_is_the_same_life(self, tmp_path: Path) -> None:
        server = Server()
        server.waiting.extend(RECORDED.upto("A stored"))
        first = await server.attach(tmp_path / "life")
        first.bridge._remember(1_000.0)
        for step, same in (("B and C stored", True), ("restarted, B stored", False)):
            again = Server()
            again.waiting.extend(RECORDED.upto(step))
            second = await again.attach(tmp_path / "life")
            assert (second.hook.lives == first.hook.lives) is same
            assert second.folded.credited("cpu") == ({*ids(A), *ids(B), *ids(C)} if same else set(ids(B)))

    def test_a_bound_salt_names_its_domain(self) -> None:
        from tests.support.folded_stream import FoldedStream

        bound = {bound_salt_hmac(RING["acme"].salt_key, "tenant-a"): "acme"}
        folded = FoldedStream(CONFIG, bound=bound)
        reader = LmcacheReader("tiny", *blake3_chunk_hash())
        for one in RECORDED.upto("A stored for tenant-a"):
            for found in decode_request(one)[0]:
                folded.feed(reader.decode(found.seq - 1, found.body))
        assert set(folded.copies("cpu", domain="acme")) == set(ids(A, "acme"))


class TestStream:
    async def test_a_number_left_out_is_a_loss_and_a_repeat_is_none(self) -> None:
        bridge = await read(body(batch(1, entry(A, 0)), batch(3, entry(A, 1)), batch(3, entry(A, 2))))
        assert bridge.bridge.counts.lost_messages == 1
        assert bridge.folded.credited("cpu") == {ids(A)[1]}
        assert set(bridge.folded.copies("cpu")) == set(ids(A)[:2])
        assert bridge.folded.state.holders["cpu"].inventory is Inventory.PARTIAL

    async def test_what_is_told_again_after_a_loss_is_sure_again(self) -> None:
        bridge = await read(body(batch(1, entry(A, 0)), batch(3, entry(A, 0))))
        assert bridge.folded.credited("cpu") == {ids(A)[0]}

    async def test_an_older_incarnation_s_late_words_are_not_taken(self) -> None:
        old = batch(7, entry(A, 0), incarnation=1)
        bridge = await read(body(batch(1, entry(C, 0), incarnation=2), old))
        assert bridge.folded.credited("cpu") == {ids(C)[0]}
        assert bridge.bridge.counts.lives == 1

    async def test_a_reader_that_comes_late_to_a_server_that_keeps_nothing_knows_little(self) -> None:
        server = Server(kept=False)
        bridge = await server.attach()
        server.intake.offer(body(batch(9, entry(A, 0))))
        await bridge.bridge._intake.feed(await server.source.receive(1.0))
        assert bridge.bridge.counts.lost_messages == 8
        assert bridge.folded.state.holders["cpu"].inventory is Inventory.PARTIAL
        assert bridge.folded.credited("cpu") == {ids(A)[0]}

    async def test_a_source_says_when_it_has_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("events.hooks.lmcache_source.BYTES_KEPT", 250)
        server = Server()
        for number in range(3):
            assert server.intake.full is None
            server.intake.offer(body(batch(number + 1)))
            if server.intake.full is not None:
                break
        assert server.intake.full is server.source
        await server.source.receive(0.0)
        assert server.intake.full is None

    async def test_more_than_can_wait_is_told_as_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("events.hooks.lmcache_source.ITEMS_KEPT", 3)
        server = Server(kept=False)
        for number in range(10):
            server.intake.offer(body(batch(number + 1)))
        items = await server.source.receive(1.0)
        assert [type(item).__name__ for item in items] == ["EngineMessage"] * 3 + ["MessagesLost"]
        server.intake.offer(body(batch(11)))
        assert [type(item).__name__ for item in await server.source.receive(1.0)] == ["EngineMessage"]


class TestClaims:
    async def test_a_chunk_whose_predecessor_is_unknown_is_an_orphan(self) -> None:
        bridge = await read(body(batch(1, entry(A, 1))))
        assert not bridge.folded.copies("cpu")
        assert bridge.folded.stream.orphan_counts() == (1, 0)

    async def test_a_neighbour_in_the_batch_is_no_predecessor(self) -> None:
        """A's first chunk and B's last stand side by side with fitting offsets of different prompts."""
        other = [4_000 + number for number in range(2 * CHUNK)]
        bridge = await read(body(batch(1, entry(A, 0), entry(other, 1))))
        assert bridge.folded.credited("cpu") == {ids(A)[0]}
        assert bridge.folded.stream.orphan_counts() == (1, 0)

    async def test_a_hash_that_is_not_its_tokens_is_an_orphan(self) -> None:
        wrong = entry(A, 0) | {"token_ids": A[1 : CHUNK + 1]}
        bridge = await read(body(batch(1, wrong)))
        assert not bridge.folded.copies("cpu")
        assert bridge.folded.stream.orphan_counts() == (1, 0)

    async def test_a_store_without_tokens_is_an_orphan_and_can_be_deleted(self) -> None:
        bare = entry(A, 0) | {"token_ids": [], "token_offset": -1}
        bridge = await read(body(batch(1, bare), batch(2, bare, event_type="delete")))
        assert not bridge.folded.copies("cpu")
        assert bridge.folded.stream.orphan_counts() == (0, 0)
        assert bridge.folded.stream.removed_unknown == 0

    async def test_two_backends_of_a_tier_hold_it_until_both_let_go(self) -> None:
        cxl = {"backend": "devdax"}
        bridge = await read(
            body(
                batch(1, entry(A, 0), entry(A, 1)),
                batch(2, entry(A, 0), **cxl),
                batch(3, entry(A, 0), entry(A, 1), event_type="delete"),
            )
        )
        assert bridge.folded.credited("cpu") == {ids(A)[0]}

    async def test_remote_backends_are_remote_and_unknown_media_flagged(self) -> None:
        bridge = await read(
            body(batch(1, entry(A, 0), tier="l2", backend="s3"), batch(2, entry(A, 1), backend="quantum"))
        )
        assert set(bridge.folded.copies("remote")) == {ids(A)[0]}
        assert bridge.bridge.counts.unknown_media == 1
        assert bridge.folded.state.unknown_events == 1

    @pytest.mark.parametrize(
        "changes",
        [
            {"key": {"chunk_hash_hex": "zz", "model_name": "tiny", "kv_rank": 1 << 24}},
            {"key": {"chunk_hash_hex": "aa", "model_name": "tiny", "kv_rank": 5}},
            {
                "key": {
                    "chunk_hash_hex": "aa",
                    "model_name": "tiny",
                    "kv_rank": 1 << 24,
                    "object_group_id": -1,
                }
            },
            {"key": {"model_name": "tiny"}},
            {"token_ids": [-1] * CHUNK},
            {"token_ids": "tokens"},
        ],
    )
    async def test_one_bad_entry_costs_itself_visibly(self, changes: dict[str, Any]) -> None:
        bridge = await read(body(batch(1, entry(C, 0)), batch(2, entry(A, 0) | changes, entry(A, 0))))
        assert bridge.bridge.counts.malformed == 1
        assert bridge.folded.credited("cpu") == {ids(A)[0]}
        assert bridge.folded.copies("cpu")[ids(C)[0]][1].state is CopyState.UNCERTAIN

    async def test_newer_fields_are_ignored_and_newer_kinds_flagged(self) -> None:
        newer = batch(2, event_type="move", destination="x")
        bridge = await read(body(batch(1, entry(A, 0, colour="red"), colour="red"), newer))
        assert bridge.folded.credited("cpu") == {ids(A)[0]}
        assert bridge.bridge.counts.unknown_kinds == 1

    async def test_no_token_is_in_a_repr(self) -> None:
        (one,), _ = decode_request(body(batch(1, entry([4_242] * CHUNK, 0))))
        assert "4242" not in repr(one)


class TestIntake:
    @pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"batches": 3}', b"\xff\xfe", b"[" * 100_000])
    def test_a_body_that_is_none_is_told_to_its_server_s_source(self, raw: bytes) -> None:
        server = Server()
        with pytest.raises(DecodeError):
            server.intake.offer(raw, server="lmc-0")
        assert server.intake.unreadable == 1
        assert [type(item).__name__ for item in server.source._hand_out()] == ["UnreadableFrames"]

    def test_a_batch_of_nobody_is_told_and_the_others_are_taken(self) -> None:
        server = Server()
        offered = server.intake.offer(body({"seq": 1}, batch(1), batch(0), batch(2)), server="lmc-0")
        assert offered == Offered(applied=2)
        assert server.intake.unreadable == 1

    def test_a_server_that_nobody_asked_for_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        server = Server()
        for number in range(3):
            server.intake.offer(body(batch(number + 1, instance_id="other")))
        assert len(caplog.records) == 1

    async def test_the_door_answers_as_the_coordinator_does(self) -> None:
        server = Server(kept=False)
        transport = httpx.ASGITransport(app=LmcacheDoor(server.intake))
        async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
            for one in RECORDED.upto("A stored"):
                assert (await client.post("/events", content=one)).json() == {
                    "applied": 1,
                    "duplicates": 0,
                    "stale": 0,
                }
            again = await client.post("/events", content=one)
            assert again.json() == {"applied": 0, "duplicates": 1, "stale": 0}
            assert (await client.post("/events", content=b"no")).status_code == 422
            named = await client.post("/instances", json={"instance_id": "lmc-0"})
            assert named.json() == {"instance_id": "lmc-0"}
            assert (await client.post("/instances", json={})).json()["instance_id"]
            assert (await client.put("/instances/lmc-0/heartbeat")).status_code == 200
            assert (await client.delete("/instances/lmc-0")).status_code == 204
            assert (await client.post("/directory/lookup", json={})).status_code == 404
            assert (await client.post("/events", content=b"x" * (17 << 20))).status_code == 413
        bridge = await server.attach()
        assert bridge.folded.credited("cpu") == set(ids(A))
        assert isinstance(await bridge.bridge.confirm(1.0), Confirmed)
