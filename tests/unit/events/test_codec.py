"""Bytes <-> records: what is written is read, and every kind of damage has its stable reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.codec import (
    BatchDecodeError,
    decode_access,
    decode_audit,
    decode_batch,
    decode_control,
    decode_dead,
    decode_pulse,
    decode_quota,
    decode_signal,
    decode_subject,
    dump,
)
from events.errors import DecodeError
from events.ids import Basis, StreamKey
from events.model.audit import DeadRecord
from events.model.signal import Beacon, Echo, Pulse, RankPulse
from events.topic import MAX_RECORD_BYTES
from events.upcast import upcast
from tests.support.log import ALIAS, ControlLog, StreamBuilder, block, declared, opened, stored


def sealed() -> bytes:
    return StreamBuilder().seal(opened(), events=[declared(), stored([block(1), block(2)])]).value


def test_a_batch_is_read_as_it_was_written() -> None:
    batch = decode_batch(sealed())
    assert batch.header.stream == StreamKey("w0", 0, "e1")
    assert batch.stream_events == (opened(),)
    assert batch.parts[0].alias == ALIAS
    assert batch.parts[0].events == (declared(), stored([block(1), block(2)]))


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=50), st.booleans())
def test_ids_survive_packing(ids: list[bytes], rooted: bool) -> None:
    parent = None if rooted else bytes(range(16))
    event = stored(ids, parent)
    value = StreamBuilder(seq=3).seal(events=[event]).value
    assert decode_batch(value).parts[0].events == (event,)


def damage(edit: str) -> bytes:
    lines = sealed().split(b"\n")
    header = json.loads(lines[0])
    if edit == "version":
        header["v"] = 2
    elif edit == "field":
        header["surprise"] = 1
    elif edit == "type":
        header["seq"] = "0"
    elif edit == "negative":
        header["seq"] = -1
    elif edit == "twice":
        header["parts"][1]["alias"] = None
    if edit == "part":
        lines[2] = lines[2].replace(b"block_stored", b"block_stowed")
    if edit == "count":
        lines.append(b"{}")
    return b"\n".join(
        [json.dumps(header).encode() if edit not in ("part", "count") else lines[0], *lines[1:]]
    )


@pytest.mark.parametrize(
    ("edit", "reason", "readable"),
    [
        ("version", "unknown_version", True),
        ("field", "malformed", True),
        ("type", "malformed", False),
        ("negative", "malformed", False),
        ("twice", "malformed", True),
        ("part", "part_hash", True),
        ("count", "part_count", True),
    ],
)
def test_each_damage_has_its_reason_and_tells_the_stream_if_it_can(
    edit: str, reason: str, readable: bool
) -> None:
    with pytest.raises(BatchDecodeError) as caught:
        decode_batch(damage(edit))
    assert caught.value.reason == reason
    assert (caught.value.stream == StreamKey("w0", 0, "e1")) is readable
    assert (caught.value.seq is not None) is readable


@pytest.mark.parametrize("value", [b"", b"\x00\xff", b"{}", b"[]", b"null", b"{" * 5_000, b'{"v":1}'])
def test_garbage_names_no_stream(value: bytes) -> None:
    with pytest.raises(BatchDecodeError) as caught:
        decode_batch(value)
    assert caught.value.stream is None


def test_an_oversize_record_is_refused_unread_and_never_written() -> None:
    with pytest.raises(BatchDecodeError) as caught:
        decode_batch(b"x" * (2 * MAX_RECORD_BYTES + 1))
    assert caught.value.reason == "oversize"
    big = stored([block(n) for n in range(60_000)])
    with pytest.raises(ValueError, match="above"):
        StreamBuilder().seal(events=[big])


def test_an_unknown_event_type_is_malformed_with_its_stream() -> None:
    from events.chain import sha256

    lines = sealed().split(b"\n")
    lines[2] = lines[2].replace(b"block_stored", b"block_stowed")
    header = json.loads(lines[0])
    header["parts"][1]["sha256"] = sha256(lines[2]).hex()
    with pytest.raises(BatchDecodeError) as caught:
        decode_batch(b"\n".join([json.dumps(header).encode(), *lines[1:]]))
    assert (caught.value.reason, caught.value.seq) == ("malformed", 0)


@given(st.binary(max_size=300))
def test_no_bytes_on_any_topic_do_anything_but_decode_or_decode_error(value: bytes) -> None:
    for decode in (
        decode_batch,
        decode_control,
        decode_pulse,
        decode_signal,
        decode_quota,
        decode_audit,
        decode_access,
        decode_subject,
        decode_dead,
    ):
        with pytest.raises(DecodeError):
            decode(value)


@given(st.data())
def test_one_flipped_byte_never_passes_for_the_same_batch(data: st.DataObject) -> None:
    value = sealed()
    at = data.draw(st.integers(0, len(value) - 1))
    flipped = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
    try:
        batch = decode_batch(flipped)
    except BatchDecodeError:
        return
    assert batch.header_sha256 != decode_batch(value).header_sha256


def test_control_bodies_are_bound_to_their_headers() -> None:
    value, _ = ControlLog().records[1]
    head, _, body = value.partition(b"\n")
    with pytest.raises(DecodeError, match="body_hash"):
        decode_control(head + b"\n" + body.replace(b"enrolment", b"operator"))
    assert decode_control(value).body.kind == "granted"


def test_pulses_and_signals_round_trip() -> None:
    pulse = Pulse(
        worker="w0",
        ranks=(
            RankPulse(
                rank=0,
                epoch="e",
                next_seq=4,
                prev=bytes(32),
                basis=Basis.PUBLISHED,
                echo=Echo(offset=9, nonce=bytes(16)),
            ),
        ),
    )
    assert decode_pulse(dump(pulse)) == pulse
    beacon = Beacon(reader="r", nonce=bytes(16))
    assert decode_signal(dump(beacon)) == beacon


def test_dead_records_keep_any_bytes_whole() -> None:
    dead = DeadRecord(
        topic="kv.events", partition=0, offset=1, reason="not_json", key=None, value=bytes(range(256))
    )
    assert decode_dead(dump(dead)) == dead


def test_upcasts_run_step_by_step_and_refuse_what_has_no_step() -> None:
    steps = {("pulse", 1): lambda d: d | {"v": 2, "a": 1}, ("pulse", 2): lambda d: d | {"v": 3, "b": 2}}
    current = {"pulse": 3}
    assert upcast("pulse", {"v": 1}, steps=steps, current=current) == {"v": 3, "a": 1, "b": 2}
    for version in (0, 4, None, True, "1"):
        with pytest.raises(DecodeError, match="unknown_version"):
            upcast("pulse", {"v": version}, steps=steps, current=current)
    with pytest.raises(DecodeError, match="no upcast"):
        upcast("pulse", {"v": 2}, steps={}, current=current)


@pytest.mark.parametrize("seq", [10**30, 1 << 63, 1 << 62, -1])
def test_numbers_that_no_store_can_hold_name_no_record(seq: int) -> None:
    header = json.loads(sealed().split(b"\n")[0]) | {"seq": seq}
    with pytest.raises(BatchDecodeError) as caught:
        decode_batch(json.dumps(header).encode() + b"\n" + b"\n".join(sealed().split(b"\n")[1:]))
    assert (caught.value.reason, caught.value.stream, caught.value.seq) == ("malformed", None, None)
