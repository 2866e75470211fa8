#!/usr/bin/env python3
"""Verifies a kvledger deletion bundle or report, apart from kvledger: this one file, Python 3.11 and `cryptography`.

    python verify_bundle.py FILE KEY      KEY: the operator's or the auditor's public key, 64 hex characters or a file
                                          that holds them

Exit code 0 PROVEN, 1 REFUTED, 2 UNPROVABLE, 3 PENDING, 4 the file proves nothing; 64 wrong usage: no such file, or no
key, and nothing was verified. Needs no network. It was
written from audit.md, which is beside it, and shares no line with the auditor: it follows one stream after the
other, keeps plain tables, and judges the nine conditions at the end. Where the statement says anything else than what
comes out here (kind, conditions, reasons, counterexamples, counts, holders, anchoring), the bundle is invalid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Json = dict[str, Any]
Shape = Callable[[Any], Any]
EXIT = {"PROVEN": 0, "REFUTED": 1, "UNPROVABLE": 2, "PENDING": 3}
INVALID = 4
MAX_LINE = 16_000_000
USAGE = 64
ROOT = bytes(16)
WHOLE_SPACE = 1 << 128
CANARY = "kvledger.canary"
REPORT_CLAIM = (
    "These are all deletion requests that the register holds from the first position up to, without, the next one, and "
    "the newest verdict that an auditor of this log had signed on each of them when the report was made."
)
REPORT_NOT_CLAIMED = (
    "that a verdict still holds: each holds as of its own frontier; judge again with kvledger audit run --all",
    "which verdict is the newest: that no newer one was left out is the auditor's word",
    "times: they are those of the writers' clocks",
    "requests that were never written into this register",
)
CLAIMS = (
    "No registered holder has a copy left of what the request covers that was made before the request was written, "
    "as of the frontier (the positions up to which the log was read for this verdict) and under the assumptions "
    "listed. What is not PROVEN is not claimed.",
    "As of the frontier, no copy in scope that was admitted before the request existed on any registered holder, under "
    "the assumptions listed; what is not PROVEN is not claimed.",
)
NOT_CLAIMED = (
    "physical erasure of memory cells",
    "honesty of a worker that lies in signed statements",
    "copies outside the registered holders: encoder caches, draft models, unregistered stores",
    "bodies withheld from this bundle concern other tenants by the auditor's word",
    "records shown by digests alone can't be read or are of no registered stream by the auditor's word",
)


class Invalid(Exception):
    """The bundle proves nothing."""


def once(pairs: list[tuple[str, Any]]) -> Json:
    made = dict(pairs)
    need(len(made) == len(pairs), "a name comes twice")
    return made


def not_whole(given: str) -> Any:
    raise ValueError(f"{given[:20]} is no whole number")


def read_lines(body: bytes, forms: dict[str, tuple[Shape, ...]]) -> list[Json]:
    """The lines of evidence, each checked as it is read: `format` first and once, only fields that are described."""
    lines: list[Json] = []
    for raw in io.BytesIO(body):
        need(len(raw) <= MAX_LINE + 1, "a line is too long")
        if raw == b"\n":
            continue
        line = json.loads(
            raw.removesuffix(b"\n").decode(),
            object_pairs_hook=once,
            parse_float=not_whole,
            parse_constant=not_whole,
        )
        need(
            type(line) is dict and type(line.get("t")) is str and line["t"] in forms,
            "an unknown kind of line",
        )
        fields = {name: value for name, value in line.items() if name != "t"}
        need(any(fits(form, fields) for form in forms[line["t"]]), "a line has another form")
        need((line["t"] == "format") == (not lines), "the format comes first and once")
        lines.append(line)
    return lines


def fits(form: Shape, fields: Json) -> bool:
    try:
        form(fields)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- bytes


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def signed_by(key: bytes, signature: bytes | None, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature or b"", message)
    except (InvalidSignature, ValueError):
        return False
    return True


def key_id(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]


def unbase64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def alias_of(alias_key: bytes, worker: str, rank: int, epoch_no: int) -> bytes:
    """HKDF-SHA256 (RFC 5869) without salt, 16 bytes."""
    info = f"kvledger alias v1|{worker}|{rank}|{epoch_no}".encode()
    secret = hmac.digest(bytes(32), alias_key, "sha256")
    return hmac.digest(secret, info + b"\x01", "sha256")[:16]


def store_alias_of(alias_key: bytes, durable: str) -> bytes:
    """What a domain is called in one store."""
    secret = hmac.digest(bytes(32), alias_key, "sha256")
    return hmac.digest(secret, f"kvledger store alias v1|{durable}".encode() + b"\x01", "sha256")[:16]


# ---------------------------------------------------------------- shapes of records


def need(holds: bool, what: str = "a value has the wrong form") -> None:
    if not holds:
        raise ValueError(what)


def text(low: int = 0, high: int = 2_000, pattern: str = "") -> Shape:
    def check(value: Any) -> str:
        need(type(value) is str and low <= len(value) <= high)
        need(not pattern or re.fullmatch(pattern, value) is not None)
        return str(value)

    return check


def number(low: int = 0, high: int = (1 << 62) - 1) -> Shape:
    def check(value: Any) -> int:
        need(type(value) is int and low <= value <= high)
        return int(value)

    return check


def hexed(length: int) -> Shape:
    def check(value: Any) -> bytes:
        need(type(value) is str and value == value.lower())
        raw = bytes.fromhex(value)
        need(len(raw) == length)
        return raw

    return check


def packed(value: Any) -> tuple[bytes, ...]:
    need(type(value) is str and len(value) <= 65_536 * 22)
    raw = base64.b64decode(value, validate=True)
    need(len(raw) % 16 == 0)
    return tuple(raw[at : at + 16] for at in range(0, len(raw), 16))


def some_ids(value: Any) -> tuple[bytes, ...]:
    found = packed(value)
    need(bool(found))
    return found


def one_of(*allowed: Any) -> Shape:
    def check(value: Any) -> Any:
        need(any(type(value) is type(one) and value == one for one in allowed))
        return value

    return check


def maybe(shape: Shape) -> Shape:
    return lambda value: None if value is None else shape(value)


def several(shape: Shape, low: int = 0, high: int = 1 << 30) -> Shape:
    def check(value: Any) -> tuple[Any, ...]:
        need(type(value) is list and low <= len(value) <= high)
        return tuple(shape(one) for one in value)

    return check


class Field:
    """A shape that may be absent; then it is `default`."""

    def __init__(self, shape: Shape, default: Any = None) -> None:
        self.shape, self.default = shape, default


def optional(shape: Shape) -> Field:
    return Field(maybe(shape))


def record(rule: Callable[[Json], bool] | None = None, /, **fields: Shape | Field) -> Shape:
    """An object with these fields and no others; absent ones get their default."""

    def check(value: Any) -> Json:
        need(type(value) is dict and value.keys() <= fields.keys(), "unknown field")
        made: Json = {}
        for name, field in fields.items():
            if isinstance(field, Field):
                made[name] = field.shape(value[name]) if name in value else field.default
            else:
                need(name in value, "a field is missing")
                made[name] = field(value[name])
        need(rule is None or rule(made))
        return made

    return check


def union(tag: str, **kinds: Shape) -> Shape:
    def check(value: Any) -> Json:
        need(type(value) is dict and type(value.get(tag)) is str and value[tag] in kinds)
        found = kinds[value[tag]]({name: one for name, one in value.items() if name != tag})
        return {tag: value[tag], **found}

    return check


NAME, TEXT, COUNT = text(1, 200, r"[A-Za-z0-9._:@/+\-]+"), text(), number()
PATTERNS = several(text(1, 200, r"[A-Za-z0-9._:@/+\-]+\*?"), 1, 1_000)
ID, HASH = hexed(16), hexed(32)
RANK, GROUP, NUMBER = number(0, 65_535), number(0, 1_023), number(0, (1 << 31) - 1)
TIER = one_of("gpu", "cpu", "disk", "remote")
INVENTORY = one_of("empty", "known", "partial")
STATE = one_of("pending", "committed", "uncertain", "invalid")
LINEAGE = one_of("prefill", "transfer", "onload", "restore", "unknown")
ROLE = one_of("operator", "enrolment", "control", "supervisor", "auditor")
UNIT = one_of("blocks", "bytes")
POSITIVE, NATURAL = number(1, 1 << 512), number(0, 1 << 512)

LAYOUT_FIELDS = {
    "tp_size": Field(POSITIVE, 1),
    "tp_rank": Field(NATURAL, 0),
    "pp_size": Field(POSITIVE, 1),
    "pp_rank": Field(NATURAL, 0),
    **{
        name: optional(TEXT)
        for name in ("kv_head_layout", "page_layout", "layer_grouping", "connector", "connector_version")
    },
}
LAYOUT = record(**LAYOUT_FIELDS)
CONTENT = record(
    **{
        name: optional(TEXT)
        for name in (
            "model", "revision", "tokenizer_revision", "chat_template", "adapter", "adapter_revision", "mm_processor",
            "attention", "position_encoding", "kv_dtype",
        )
    },
    block_tokens=optional(number(1, 1 << 20)),
    approximate=optional(one_of(True)),
)  # fmt: skip
ATTENTION = record(
    lambda it: (it["kind"] == "sliding_window") == (it["window"] is not None),
    index=GROUP,
    kind=one_of("full", "sliding_window", "recurrent"),
    block_tokens=POSITIVE,
    window=optional(POSITIVE),
)
HOLDER = record(
    name=NAME,
    tier=TIER,
    capacity_blocks=optional(COUNT),
    durable_id=optional(NAME),
    groups=several(ATTENTION),
    inventory=INVENTORY,
)
OPENED_FIELDS: dict[str, Shape | Field] = {
    "engine_life": NAME,
    "engine": TEXT,
    "engine_version": TEXT,
    "hash_algorithm": optional(TEXT),
    "hash_seed": optional(TEXT),
    "removal": one_of("evict_blocks", "reset", "none"),
    "admission_known": one_of(True, False),
    "connectors": Field(several(TEXT), ()),
    "holders": several(HOLDER, 1),
}
STREAM_PART = record(
    events=several(
        union(
            "type",
            opened=record(**OPENED_FIELDS),
            engine_loss=record(first_missing=COUNT, last_missing=optional(COUNT)),
            cleared=record(holders=several(NAME), unknown_scope=Field(one_of(True, False), False)),
            unknown_events=record(kind=TEXT, length=COUNT, count=Field(COUNT, 1)),
            orphans=record(holder=NAME, orphans=COUNT, unassigned=COUNT),
            snapshot_begin=record(
                snapshot=NAME,
                opened=record(type=Field(one_of("opened"), "opened"), **OPENED_FIELDS),
                source=optional(one_of("pool")),
            ),
            snapshot_range=record(snapshot=NAME, holder=NAME, group=GROUP, low=ID, high=ID),
            snapshot_end=record(snapshot=NAME, inventories=several(record(holder=NAME, inventory=INVENTORY))),
            drained=record(),
            closed=record(engine_ended=Field(one_of(True, False), False)),
        )
    )
)
PLACED: dict[str, Shape | Field] = {"holder": NAME, "group": GROUP}
RUN = record(
    lambda it: len(it["ids"]) == len(it["parents"]),
    profile=NUMBER,
    state=Field(STATE, "committed"),
    lineage=Field(LINEAGE, "unknown"),
    admitted_after=optional(COUNT),
    pinned=Field(one_of(True, False), False),
    transfer=optional(NAME),
    ids=packed,
    parents=packed,
)
STANDING = record(
    request=COUNT, removed=COUNT, old_left=COUNT, orphans=Field(COUNT, 0), unassigned=Field(COUNT, 0)
)
DOMAIN_PART = record(
    events=several(
        union(
            "type",
            profile_declared=record(
                profile=NUMBER,
                content=CONTENT,
                layout=Field(LAYOUT, LAYOUT({})),
                block_bytes=several(number(0, 1 << 36), 1),
            ),
            profile_retired=record(profile=NUMBER),
            block_stored=record(
                **PLACED,
                profile=NUMBER,
                ids=packed,
                parent=optional(ID),
                lineage=Field(LINEAGE, "unknown"),
                admitted_after=optional(COUNT),
                pinned=Field(one_of(True, False), False),
                expires_at=optional(COUNT),
                session=optional(TEXT),
            ),
            block_evicted=record(
                **PLACED,
                ids=packed,
                reason=Field(one_of("capacity", "demoted", "expired", "unknown"), "unknown"),
                certain=Field(one_of(True, False), True),
            ),
            block_invalidated=record(
                **PLACED,
                ids=packed,
                reason=one_of("deletion", "model_rollout", "integrity", "quota", "operator"),
                request=optional(COUNT),
            ),
            tier_changed=record(from_holder=NAME, to_holder=NAME, group=GROUP, ids=packed),
            transfer_started=record(
                **PLACED,
                transfer=NAME,
                source=TEXT,
                profile=NUMBER,
                ids=packed,
                parent=optional(ID),
                admitted_after=optional(COUNT),
                layout=optional(LAYOUT),
            ),
            transfer_committed=record(transfer=NAME, digest=HASH),
            transfer_aborted=record(transfer=NAME),
            transfer_rejected=record(transfer=NAME, request=optional(COUNT)),
            snapshot_part=record(runs=several(RUN)),
            statement=record(**PLACED, count=COUNT, checksum=ID, source=one_of("pool", "derived")),
            ack=record(requests=several(STANDING), nonce=optional(COUNT)),
            refused=record(
                request=COUNT,
                reason=one_of("no_delete_path", "blocks_in_use", "engine_error", "not_authorised"),
                cure=TEXT,
            ),
        )
    )
)
HEADER = record(
    v=Field(one_of(1), 1),
    worker=NAME,
    rank=RANK,
    epoch=NAME,
    epoch_no=COUNT,
    seq=COUNT,
    prev=HASH,
    control=record(offset=COUNT, hash=HASH),
    parts=several(record(alias=optional(ID), sha256=HASH, events=COUNT), 1, 4_096),
)
CONTROL_HEADER = record(
    v=Field(one_of(1), 1),
    kind=NAME,
    log=NAME,
    signer=NAME,
    role=ROLE,
    body_sha256=HASH,
    idempotency_key=optional(NAME),
    key_scope=optional(NAME),
    written_ms=COUNT,
)
SCOPE = union(
    "type",
    tenant=record(tenant=NAME),
    domain=record(domain=NAME),
    subject=record(
        lambda it: it["leaves"] is None or it["pseudonym"] is not None,
        domain=NAME,
        subject=NAME,
        pseudonym=optional(HASH),
        leaves=optional(some_ids),
        bound_to=optional(COUNT),
    ),
    prefix=record(domain=NAME, ids=some_ids),
    profile=record(profile=HASH, others=optional(several(HASH, 1, 1_000))),
    ids=record(domain=NAME, ids=some_ids),
)


def one_place(it: Json) -> bool:
    return (it["domain"] is None) != (it["tenant"] is None)


STREAM: dict[str, Shape | Field] = {"worker": NAME, "rank": RANK, "epoch": NAME}
CONTROL_BODY = union(
    "kind",
    genesis=record(log=NAME, operator_key=HASH, partitions=number(1, 4_096)),
    granted=record(
        lambda it: (
            (it["workers"] is None and it["stores"] is None)
            or {"enrolment", "supervisor"}.issuperset(it["roles"])
        ),
        public_key=HASH,
        roles=several(ROLE, 1),
        label=TEXT,
        workers=optional(PATTERNS),
        stores=optional(PATTERNS),
    ),
    revoked=record(public_key=HASH),
    registered=record(
        **STREAM,
        engine_life=NAME,
        public_key=HASH,
        partition=COUNT,
        endpoint=optional(TEXT),
        model=optional(TEXT),
        pod=optional(NAME),
        container=optional(NAME),
        container_id=optional(NAME),
    ),
    fenced=record(**STREAM, evidence=one_of("timeout", "operator", "conflict")),
    exit_attested=record(worker=NAME, engine_life=NAME, attester=NAME, evidence=TEXT),
    domain_created=record(domain=NAME, tenant=NAME, shared=Field(one_of(True, False), False)),
    domain_admitted=record(domain=NAME, tenant=NAME),
    salt_bound=record(domain=NAME, salt_hmac=HASH),
    holder_enrolled=record(durable_id=NAME, tier=TIER, owner=NAME),
    holder_destroyed=record(durable_id=NAME, evidence=TEXT),
    holder_encrypted=record(durable_id=NAME, alias=optional(ID), key=optional(ID)),
    key_listed=record(
        lambda it: len({one["ring"] for one in it["rings"]}) == len(it["rings"]),
        key=ID,
        rings=several(record(ring=NAME, attester=optional(HASH)), 1, 200),
    ),
    key_destroyed=record(key=ID, ring=NAME, evidence=TEXT),
    limit_set=record(
        lambda it: it["soft"] is None or it["hard"] is None or it["soft"] <= it["hard"],
        tenant=NAME,
        tier=TIER,
        unit=UNIT,
        soft=optional(COUNT),
        hard=optional(COUNT),
    ),
    policy_set=record(
        one_place,
        domain=optional(NAME),
        tenant=optional(NAME),
        retain_s=optional(number(60)),
        prove_within_s=optional(COUNT),
    ),
    hold_set=record(one_place, hold=NAME, domain=optional(NAME), tenant=optional(NAME), reason=TEXT),
    hold_released=record(hold=NAME),
    deletion_requested=record(
        scope=SCOPE, requester=NAME, reason=Field(TEXT, ""), deadline_s=optional(COUNT)
    ),
    invalidation_requested=record(
        scope=SCOPE, requester=NAME, reason=one_of("model_rollout", "integrity", "quota", "operator")
    ),
    audit_nonce=record(request=COUNT, nonce=NAME),
    inventory_stated=record(
        source=NAME,
        members=several(record(worker=NAME, pod=optional(NAME)), 0, 2_000),
        gone=optional(several(record(worker=NAME, pod=optional(NAME), evidence=TEXT), 1, 2_000)),
    ),
    schema_enabled=record(record=one_of("event_batch", "pulse"), version=POSITIVE),
    controller_started=record(controller=NAME),
)
MAY_SAY = {
    "operator": {"genesis", "granted", "revoked", "schema_enabled", "key_listed"},
    "enrolment": {"registered", "holder_enrolled", "holder_encrypted"},
    "supervisor": {"exit_attested", "holder_destroyed", "key_destroyed", "inventory_stated"},
    "auditor": {"audit_nonce"},
    "control": {
        "fenced", "domain_created", "domain_admitted", "salt_bound", "limit_set", "policy_set", "hold_set",
        "hold_released", "deletion_requested", "invalidation_requested", "controller_started", "key_listed",
    },
}  # fmt: skip
ALWAYS_SHOWN = {
    "genesis", "granted", "revoked", "registered", "fenced", "exit_attested", "holder_enrolled", "holder_destroyed",
    "holder_encrypted", "key_listed", "key_destroyed", "audit_nonce", "inventory_stated", "schema_enabled",
    "controller_started",
}  # fmt: skip
SIGNATURE_LINE = record(keyid=text(0, 1 << 30), sig=text(0, 1 << 30))
ENVELOPE = record(
    payloadType=Field(one_of("application/vnd.in-toto+json"), "application/vnd.in-toto+json"),
    payload=text(0, 1 << 30),
    signatures=several(SIGNATURE_LINE, 1, 1),
)
SUBJECT = record(name=text(0, 1 << 30), digest=record(sha256=HASH))
STATEMENT = record(
    _type=one_of("https://in-toto.io/Statement/v1"),
    subject=several(SUBJECT, 2, 2),
    predicateType=one_of("urn:kvledger:predicate:deletion-verdict:v1"),
    predicate=record(
        version=Field(one_of(1), 1),
        log=text(0, 1 << 30),
        claim=one_of(*CLAIMS),
        not_claimed=several(one_of(*NOT_CLAIMED)),
        request=lambda value: value,
        verdict=lambda value: value,
        membership=lambda value: value,
        anchoring=text(0, 1 << 30),
        checkpoint=lambda value: value,
        timeline=lambda value: value,
        verifier=text(0, 1 << 30),
        given_ms=optional(COUNT),
        attestations=optional(lambda value: value),
        holds=optional(lambda value: value),
    ),
)


def numbered(shape: Shape) -> Shape:
    """An object whose names are numbers as they are usually written."""

    def check(value: Any) -> Any:
        need(type(value) is dict)
        for name, one in value.items():
            need(re.fullmatch("0|[1-9][0-9]{0,18}", name) is not None)
            shape(one)
        return value

    return check


def triple(value: Any) -> Any:
    need(type(value) is list and [type(one) for one in value] == [str, int, str])
    return value


STRING, DIGITS = text(0, 1 << 30), text(0, 1 << 30, "[0-9a-f]*")
PLACE: dict[str, Shape | Field] = {"p": COUNT, "o": COUNT}
ANCHOR_LINE = record(
    note=STRING,
    witnesses=several(STRING),
    quorum=COUNT,
    hashes=several(DIGITS),
    said=several(STRING),
    stamp=Field(STRING),
)
SEGMENT_LINE = record(
    **dict.fromkeys(("i", "partition", "first", "next", "records"), COUNT),
    topic=STRING,
    root=DIGITS,
)
SHOWN = record(o=COUNT, h=STRING, s=maybe(STRING), b=Field(STRING))
BUNDLE_LINES: dict[str, tuple[Shape, ...]] = {
    "format": (record(version=COUNT, request=COUNT, starts=numbered(COUNT)),),
    "anchor": (ANCHOR_LINE,),
    "segment": (SEGMENT_LINE,),
    "key": (record(domain=STRING, alias_key=DIGITS),),
    "bound": (record(ids=STRING),),
    "subjects": (record(cut=COUNT, missing=COUNT),),
    "control": (
        SHOWN,
        record(
            o=COUNT,
            h=STRING,
            s=maybe(STRING),
            i=record(why=STRING, broken=one_of(False), unread=one_of(False)),
        ),
        record(
            o=COUNT,
            d=several(DIGITS, 3, 3),
            i=Field(record(why=STRING, broken=one_of(True, False), unread=one_of(True, False))),
        ),
    ),
    "event": (record(**PLACE, h=STRING, s=maybe(STRING), b=numbered(STRING), r=Field(DIGITS)),),
    "unreadable": (record(**PLACE, stream=triple, seq=COUNT, x=DIGITS, reason=STRING, l=Field(DIGITS)),),
    "stranger": (record(**PLACE, stream=triple, l=Field(DIGITS)),),
    "leaf": (record(**PLACE, l=DIGITS),),
}
REPORT_LINES: dict[str, tuple[Shape, ...]] = {
    "format": (record(version=COUNT, first=COUNT, next=COUNT),),
    "anchor": (ANCHOR_LINE,),
    "segment": (SEGMENT_LINE,),
    "control": (SHOWN, record(o=COUNT, v=STRING, s=maybe(STRING))),
    "verdict": (record(o=COUNT, v=lambda value: value),),
}
REPORT_TYPE = "urn:kvledger:predicate:deletion-report:v1"
REPORT_STATEMENT = record(
    _type=one_of("https://in-toto.io/Statement/v1"),
    subject=several(SUBJECT, 2, 2),
    predicateType=one_of(REPORT_TYPE),
    predicate=record(
        version=Field(one_of(1), 1),
        made_ms=COUNT,
        audit_end=COUNT,
        verifier=text(0, 1 << 30),
        **{
            name: lambda value: value
            for name in (
                "log", "claim", "not_claimed", "first", "next", "control_end", "control_hash", "gaps", "counts", "late",
                "entries", "not_obeyed", "anchoring", "checkpoint",
            )
        },
    ),
)  # fmt: skip
AUDIT_RECORD = record(v=Field(one_of(1), 1), signer=NAME, signature=hexed(64), statement=text(0, 1 << 30))
POSITION = record(topic=NAME, partition=COUNT, offset=COUNT)
VERDICT_GIVEN = record(
    type=Field(one_of("verdict"), "verdict"),
    log=NAME,
    request=COUNT,
    verdict=one_of("PROVEN", "REFUTED", "PENDING", "UNPROVABLE"),
    reasons=several(record(reason=TEXT, condition=NAME, subject=TEXT, detail=TEXT, cure=TEXT)),
    frontier=several(POSITION),
    bundle_sha256=optional(HASH),
    given_ms=COUNT,
)
TIMED = (
    "registered", "fenced", "exit_attested", "holder_destroyed", "key_listed", "key_destroyed", "deletion_requested",
    "audit_nonce",
)  # fmt: skip
SEGMENT = record(topic=NAME, partition=COUNT, first=COUNT, next=COUNT, records=COUNT, root=HASH)


# ---------------------------------------------------------------- kv.control


SUBJECTS_OF = {
    "registered": {"worker": "worker"},
    "exit_attested": {"worker": "worker"},
    "holder_enrolled": {"worker": "owner", "store": "durable_id"},
    "holder_destroyed": {"store": "durable_id"},
    "holder_encrypted": {"store": "durable_id"},
}
"""Which field names the worker and the store of what a bound key may say."""


def within(bound: Json | None, body: Json | None) -> bool:
    """Whether a record is about nothing but what its signer's grant is bound to, as far as it is shown."""
    if bound is None or body is None:
        return True
    fields = SUBJECTS_OF.get(body["kind"])
    return fields is not None and all(
        any(matches(one, body[field]) for one in bound[what]) for what, field in fields.items()
    )


def matches(pattern: str, name: str) -> bool:
    return name == pattern or (pattern[-1] == "*" and name[: len(pattern) - 1] == pattern[:-1])


class Control:
    """What kv.control says, and where it is broken."""

    def __init__(self) -> None:
        self.hash = sha(b"kvledger control log v1")
        self.hashes: dict[int, bytes] = {}
        self.start: int | None = None
        self.end = 0
        self.holes: list[int] = []
        self.log, self.operator, self.partitions = "", b"", 0
        self.keys: dict[str, Json] = {}
        self.epochs: dict[tuple[str, int, str], Json] = {}
        self.fences: dict[tuple[str, int, str], str] = {}
        self.exits: dict[tuple[str, str], int] = {}
        self.owners: dict[str, str] = {}
        self.destroyed: dict[str, int] = {}
        self.enrolled: dict[str, int] = {}
        self.handed_at: dict[str, int] = {}
        self.ciphers: list[tuple[int, str, bytes | None, bytes | None]] = []
        self.rings: dict[bytes, dict[str, Json]] = defaultdict(dict)
        self.domains: dict[str, str] = {}
        self.admitted: set[tuple[str, str]] = set()
        self.requests: dict[int, Json] = {}
        self.nonces: list[tuple[int, int]] = []
        self.inventories: dict[int, Json] = {}
        self.broken: list[int] = []
        self.unread: list[int] = []
        self.passed: list[int] = []
        self.leaves: list[tuple[int, bytes]] = []
        self.told: list[tuple[int, str, str, int]] = []
        self.words: list[tuple[int, Json, Json]] = []
        self._used: set[tuple[str, str]] = set()
        self._signed: set[bytes] = set()

    @property
    def whole(self) -> bool:
        return self.start == 0 and not self.holes and bool(self.log)

    def take(self, line: Json) -> None:
        offset = int(line["o"])
        if self.start is not None and offset < self.end:
            raise Invalid("the control records are out of order")
        if "d" in line:
            digests = [bytes.fromhex(one) for one in line["d"]]
            need(len(digests) == 3)
            self._step(offset, *digests)
            note = line.get("i")
            if note is not None:
                self.broken += [offset] * bool(note["broken"])
                self.unread += [offset] * bool(note["unread"])
            else:
                self._signed.add(digests[0])
            return
        head, signature = str(line["h"]).encode(), unbase64(line["s"])
        if "b" not in line:
            header = CONTROL_HEADER(json.loads(head))
            if header["kind"] in ALWAYS_SHOWN:
                raise Invalid(f"the body of a {header['kind']} record is withheld")
            self._step(offset, sha(head), header["body_sha256"], sha(signature or b""))
            self._obey(offset, header, head, signature, None, b"")
            return
        self._read(offset, head + b"\n" + str(line["b"]).encode(), signature)

    def _read(self, offset: int, value: bytes, signature: bytes | None) -> None:
        """A record that is shown whole."""
        first, _, behind = value.partition(b"\n")
        self._step(offset, sha(first), sha(behind), sha(signature or b""))
        if sha(first) in self._signed:
            self.passed.append(offset)
            return
        try:
            header = CONTROL_HEADER(json.loads(first))
            need(sha(behind) == header["body_sha256"])
            body = CONTROL_BODY(json.loads(behind))
            need(body["kind"] == header["kind"])
        except (ValueError, RecursionError):
            self.passed.append(offset)
            if any(signed_by(key["key"], signature, first) for key in self.keys.values()):
                self.unread.append(offset)
            return
        self._obey(offset, header, first, signature, body, sha(value))

    def reach(self, end: int) -> None:
        """The log ends here: offsets behind the last record hold none."""
        if self.start is not None and end > self.end:
            self.holes.append(self.end)
            self.end = end

    def _step(self, offset: int, head: bytes, rest: bytes, signature: bytes) -> None:
        if self.start is None:
            self.start = self.end = offset
        if offset > self.end:
            self.holes.append(self.end)
        self.hash = sha(self.hash + head + rest + signature)
        self.hashes[offset], self.end = self.hash, offset + 1
        self.leaves.append((offset, record_leaf(offset, head, rest, signature)))

    def _obey(
        self,
        offset: int,
        header: Json,
        head: bytes,
        signature: bytes | None,
        body: Json | None,
        digest: bytes,
    ) -> None:
        if sha(head) in self._signed:
            self.passed.append(offset)
            return
        if not self._authorised(offset, header, head, signature, body):
            self.broken.append(offset)
            self.passed.append(offset)
            return
        self._signed.add(sha(head))
        if header["idempotency_key"] is not None:
            key = self.keys.get(header["signer"])
            bound = key is not None and key["bound"] is not None
            used = ((None if bound else header["key_scope"]) or header["signer"], header["idempotency_key"])
            if used in self._used:
                self.passed.append(offset)
                return
            self._used.add(used)
        learned = body is not None and self._learn(offset, body, digest, header["signer"])
        if learned and body is not None:
            self.words.append((offset, header, body))
        if body is not None and learned and body["kind"] in TIMED:
            kind = body["kind"]
            subject = body.get("durable_id") or body.get("requester") or body.get("worker", "")
            if kind in ("registered", "fenced"):
                subject = f"{body['worker']}/{body['rank']}/{body['epoch']}"
            elif kind == "exit_attested":
                subject = f"{body['worker']} {body['engine_life']}"
            elif kind in ("key_listed", "key_destroyed"):
                subject = body["key"].hex() + (f" in {body['ring']}" if kind == "key_destroyed" else "")
            elif kind == "audit_nonce":
                subject = f"request {body['request']}"
            elif kind == "deletion_requested":
                self.requests[offset] |= {name: header[name] for name in ("written_ms", "key_scope")}
            self.told.append((offset, kind, subject, header["written_ms"]))

    def _authorised(
        self, offset: int, header: Json, head: bytes, signature: bytes | None, body: Json | None
    ) -> bool:
        if signature is None or header["kind"] not in MAY_SAY[header["role"]]:
            return False
        if body is not None and body["kind"] == "genesis":
            ours = key_id(body["operator_key"]) == header["signer"] and header["log"] == body["log"]
            return offset == 0 and ours and signed_by(body["operator_key"], signature, head)
        key = self.keys.get(header["signer"])
        if header["log"] != self.log or key is None or key["revoked"] or header["role"] not in key["roles"]:
            return False
        return signed_by(key["key"], signature, head) and within(key["bound"], body)

    def _learn(self, offset: int, body: Json, digest: bytes, signer: str) -> bool:
        """Whether it is obeyed, for the kinds of a timeline."""
        kind = body["kind"]
        if kind == "genesis":
            self.log, self.operator, self.partitions = body["log"], body["operator_key"], body["partitions"]
            self._grant(self.operator, ("operator",))
        elif kind == "granted":
            self._grant(body["public_key"], body["roles"], body["workers"], body["stores"])
        elif kind == "revoked":
            key = self.keys.get(key_id(body["public_key"]))
            if key is not None and body["public_key"] != self.operator:
                key["revoked"] = True
                key["revoked_at"] = offset
            else:
                self.passed.append(offset)
        elif kind == "registered":
            return self._register(offset, body, digest)
        elif kind == "fenced":
            stream = (body["worker"], body["rank"], body["epoch"])
            if stream not in self.epochs:
                return False
            self.fences.setdefault(stream, body["evidence"])
        elif kind == "exit_attested":
            self.exits[body["worker"], body["engine_life"]] = offset
        elif kind == "holder_enrolled":
            owner = self.owners.get(body["durable_id"], body["owner"])
            if owner == body["owner"] or not self._stands(owner):
                if self.owners.get(body["durable_id"]) != body["owner"]:
                    self.handed_at[body["durable_id"]] = offset
                self.owners[body["durable_id"]] = body["owner"]
                self.enrolled[body["durable_id"]] = offset
        elif kind == "holder_destroyed":
            self.destroyed[body["durable_id"]] = offset
        elif kind == "holder_encrypted":
            self.ciphers.append((offset, body["durable_id"], body["alias"], body["key"]))
        elif kind == "key_listed":
            for one in body["rings"]:
                self.rings[body["key"]][one["ring"]] = {"by": one["attester"], "gone": None}
        elif kind == "key_destroyed":
            ring = self.rings.get(body["key"], {}).get(body["ring"])
            if ring is None or (ring["by"] is not None and key_id(ring["by"]) != signer):
                return False
            ring["gone"] = offset
        elif kind == "domain_created":
            self.domains.setdefault(body["domain"], body["tenant"])
        elif kind == "domain_admitted":
            self.admitted.add((body["domain"], body["tenant"]))
        elif kind == "deletion_requested":
            self.requests[offset] = {**body, "number": offset, "sha256": digest}
        elif kind == "audit_nonce":
            self.nonces.append((offset, body["request"]))
        elif kind == "inventory_stated":
            self.inventories[offset] = body
        return True

    def _grant(self, key: bytes, roles: tuple[str, ...], workers: Any = None, stores: Any = None) -> None:
        bound = (
            None if workers is None and stores is None else {"worker": workers or (), "store": stores or ()}
        )
        self.keys[key_id(key)] = {
            "key": key, "roles": set(roles), "revoked": False, "revoked_at": None, "bound": bound,
        }  # fmt: skip

    def _register(self, offset: int, body: Json, digest: bytes) -> bool:
        stream = (body["worker"], body["rank"], body["epoch"])
        known = self.epochs.get(stream)
        if known is not None:
            if known["body"] != body:
                self.fences.setdefault(stream, "conflict")
            return False
        if body["partition"] < self.partitions:
            life = (body["worker"], body["rank"], body["engine_life"])
            self.epochs[stream] = {
                "stream": stream, "no": offset, "life": life, "memory": (*life, body["partition"]),
                "key": body["public_key"],
                "partition": body["partition"], "sha256": digest, "body": body,
            }  # fmt: skip
        return stream in self.epochs

    def newest(self, worker: str, rank: int) -> Json:
        return max((e for s, e in self.epochs.items() if s[:2] == (worker, rank)), key=lambda e: int(e["no"]))

    def _stands(self, worker: Any) -> bool:
        """Whether some rank's newest epoch of the worker is neither fenced nor of an engine that ended."""
        for rank in {stream[1] for stream in self.epochs if stream[0] == worker}:
            epoch = self.newest(worker, rank)
            if epoch["stream"] not in self.fences and (worker, epoch["life"][2]) not in self.exits:
                return True
        return False


# ---------------------------------------------------------------- one stream


class Copy:
    """A block that is held. `age` is its admitted_after, None unknown."""

    def __init__(self, **fields: Any) -> None:
        self.profile: str | None
        self.number: int
        self.state: str
        self.lineage: str
        self.age: int | None
        self.seq: int
        self.installed: int
        self.transfer: str | None
        self.doubted = False
        self.__dict__.update(fields)


def older(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)


Place = tuple[str, int, bytes]


class Holder:
    def __init__(self, declared: Json) -> None:
        self.declared = declared
        self.durable: str | None = declared["durable_id"]
        self.groups = {group["index"] for group in declared["groups"]}
        self.inventory: str = declared["inventory"]
        self.base: int | None = None
        self.base_under = -1
        self.born_empty = False
        self.cleared: tuple[int, int] | None = None
        self.orphans = self.unassigned = 0
        self.lost = False


KEPT = ("inventory", "base", "base_under", "born_empty", "cleared", "orphans", "unassigned", "lost")
"""What is known of a holder and stays so when it is declared again."""


def believed(admitted: int | None, installed: int) -> int | None:
    """A claim; one above what its writer has installed is none."""
    return admitted if admitted is not None and admitted <= installed else None


ELSEWHERE = ("transfer", "onload", "restore")
"""What a copy says of itself that wasn't computed where it lies."""


class Stream:
    """One epoch's records, in order: what it holds, from where on that is exact, and where it is broken."""

    def __init__(self, epoch: Json) -> None:
        self.epoch = epoch
        self.next, self.prev, self.first_prev = 0, b"", b""
        self.seen: dict[int, bytes] = {}
        self.status, self.sticky, self.torn, self.draining = "unopened", False, False, False
        self.engine_ended = self.brought = False
        self.opened: Json | None = None
        self.holders: dict[str, Holder] = {}
        self.declared: dict[tuple[bytes, int], Json] = {}
        self.retired: set[tuple[bytes, int]] = set()
        self.held: dict[Place, dict[bytes, Copy]] = defaultdict(dict)
        self.shadow: dict[Place, dict[bytes, int | None]] = defaultdict(dict)
        self.unverified: dict[Place, set[bytes]] = defaultdict(set)
        self.moving: dict[tuple[str, Place], tuple[Place, int | None, int, tuple[bytes, ...]]] = {}
        self.again: dict[tuple[str, Place], int] = {}
        self.overtaken = -1
        self.snapshot: Json | None = None
        self.faults: list[tuple[str, int]] = []
        self.diverged: list[tuple[int, Place]] = []
        self.stated: set[Place] = set()
        self.derived = False

    # a record

    def take(
        self, head: Json, digest: bytes, told: list[Json], parts: dict[bytes, list[Json]]
    ) -> list[Json] | None:
        """What landed by this record; None if nothing of it counts."""
        seq = head["seq"]
        if seq < self.next:
            if seq in self.seen and self.seen[seq] != digest:
                self.fault("equivocation", seq, "quarantined", sticky=True)
            elif seq not in self.seen:
                self.overtaken = max(self.overtaken, seq)
            return None
        hole = seq > self.next
        snapped = not hole and seq > 0 and self.prev != b"" and head["prev"] != self.prev
        wrong = self.wrong(head, told, parts, hole or self.status in ("gap", "quarantined"))
        if hole:
            self.fault("gap", seq, "gap")
        if snapped:
            self.fault("chain_break", seq, "quarantined", sticky=True)
        elif wrong:
            self.fault("illegal", seq, "quarantined")
        if seq == 0:
            self.first_prev = head["prev"]
        self.next, self.prev = seq + 1, digest
        self.seen[seq] = digest
        return None if snapped or wrong else self.fold(seq, head["control"]["offset"], told, parts)

    def unreadable(self, seq: int) -> None:
        if seq == self.next:
            self.fault("unreadable", seq, "quarantined")
            self.next, self.prev = seq + 1, b""

    def fault(self, kind: str, seq: int, status: str, *, sticky: bool = False) -> None:
        self.faults.append((kind, seq))
        self.snapshot, self.torn = None, True
        self.lose_bases()
        if not self.sticky and self.status != "closed":
            self.status, self.sticky = status, sticky

    def lose_bases(self) -> None:
        for holder in self.holders.values():
            holder.base, holder.born_empty = None, False

    @property
    def whole(self) -> bool:
        return self.status in ("live", "draining")

    # what may be told

    def wrong(self, head: Json, told: list[Json], parts: dict[bytes, list[Json]], lossy: bool) -> bool:
        openings = [event for event in told if event["type"] == "opened"]
        if len(openings) != (head["seq"] == 0) or head["epoch_no"] != self.epoch["no"]:
            return True
        for alias, events in parts.items():
            for event in events:
                if event["type"] == "profile_declared":
                    known = self.declared.get((alias, event["profile"]))
                    if known is not None and known != event:
                        return True
        lists = [event["holders"] for event in openings]
        lists += [event["opened"]["holders"] for event in told if event["type"] == "snapshot_begin"]
        if any(self.redefines(one) for holders in lists for one in holders):
            return True
        return not lossy and self.out_of_place(told, parts, lists)

    def redefines(self, declared: Json) -> bool:
        known = self.holders.get(declared["name"])
        if known is None:
            return False
        was = known.declared
        groups = {group["index"]: group for group in declared["groups"]}
        same = (was["tier"], was["durable_id"]) == (declared["tier"], declared["durable_id"])
        return not same or any(groups.get(group["index"]) != group for group in was["groups"])

    def out_of_place(self, told: list[Json], parts: dict[bytes, list[Json]], lists: list[Any]) -> bool:
        groups = {name: set(holder.groups) for name, holder in self.holders.items()}
        for holders in lists:
            if len({one["name"] for one in holders}) != len(holders):
                return True
            groups |= {one["name"]: {group["index"] for group in one["groups"]} for one in holders}
        ranges = [event for event in told if event["type"] == "snapshot_range"]
        if len(ranges) > 1:
            return True
        named: set[str] = set()
        for event in told:
            if event["type"] == "snapshot_range":
                if event["group"] not in groups.get(event["holder"], ()) or event["low"] > event["high"]:
                    return True
            elif event["type"] == "orphans":
                named.add(event["holder"])
            elif event["type"] == "cleared":
                named |= set(event["holders"])
            elif event["type"] == "snapshot_end":
                named |= {one["holder"] for one in event["inventories"]}
        if not named <= groups.keys():
            return True
        usable = self.declared.keys() - self.retired
        for alias, events in parts.items():
            for event in events:
                kind = event["type"]
                profiles: list[int] = []
                places: list[tuple[str, int]] = []
                if kind == "profile_declared":
                    usable.add((alias, event["profile"]))
                elif kind == "snapshot_part":
                    profiles = [run["profile"] for run in event["runs"]]
                    if not ranges:
                        return True
                elif kind in ("block_stored", "transfer_started", "profile_retired"):
                    profiles = [event["profile"]]
                if kind in (
                    "block_stored",
                    "block_evicted",
                    "block_invalidated",
                    "statement",
                    "transfer_started",
                ):
                    places = [(event["holder"], event["group"])]
                elif kind == "tier_changed":
                    places = [(event["from_holder"], event["group"]), (event["to_holder"], event["group"])]
                if any((alias, one) not in usable for one in profiles):
                    return True
                if any(group not in groups.get(holder, ()) for holder, group in places):
                    return True
        return False

    # what it means

    def fold(self, seq: int, installed: int, told: list[Json], parts: dict[bytes, list[Json]]) -> list[Json]:
        landed: list[Json] = []
        voided: dict[str, int] = defaultdict(int)
        for event in told:
            self.tell(event, seq, installed)
        for alias, events in parts.items():
            for event in events:
                kind, strange = event["type"], False
                if kind == "profile_retired":
                    for (holder, _, name), copies in self.held.items():
                        lying = [c for c in copies.values() if c.number == event["profile"]]
                        if name == alias:
                            voided[holder] += sum(copy.state != "pending" for copy in lying)
                if kind == "transfer_committed":
                    strange = not self.under(alias, event["transfer"])
                elif kind == "tier_changed":
                    there = self.held.get((event["from_holder"], event["group"], alias), {})
                    strange = any(block not in there for block in event["ids"])
                if strange:
                    self.faults.append(("gap", seq))
                    self.spoil_snapshot()
                    self.lose_bases()
                runs = event["runs"] if kind == "snapshot_part" else [event]
                self.brought |= any(run.get("lineage") in ELSEWHERE for run in runs)
                self.brought |= kind == "transfer_started"
                if kind == "snapshot_part":
                    self.brought |= any(run["transfer"] is not None for run in runs)
                self.change(alias, event, seq, installed, landed)
        counted = {e["holder"]: e["orphans"] + e["unassigned"] for e in told if e["type"] == "orphans"}
        for name, count in voided.items():
            if count > counted.get(name, 0):
                self.holders[name].base, self.holders[name].born_empty = None, False
                self.spoil_snapshot()
        for event in told:
            if event["type"] == "snapshot_range" and event["holder"] in self.holders:
                self.replace(event, seq, installed, parts, landed)
        for event in told:
            if event["type"] == "snapshot_end":
                self.finish(event)
        for alias, events in parts.items():
            for event in events:
                if event["type"] == "statement":
                    self.compare(alias, event, seq)
        return landed

    def tell(self, event: Json, seq: int, installed: int) -> None:
        kind = event["type"]
        if kind == "opened":
            self.declare(event, seq, installed)
            self.opened = event
            self.brought |= bool(event["connectors"])
            if self.status == "unopened":
                self.status = "live"
        elif kind == "snapshot_begin":
            self.declare(event["opened"], None, installed)
            self.opened = self.opened or event["opened"]
            self.brought |= bool(event["opened"]["connectors"])
            self.snapshot = {
                "name": event["snapshot"], "begin": seq, "under": installed, "ranges": defaultdict(list),
                "broken": False, "pool": event["source"] == "pool", "pending": set(),
            }  # fmt: skip
        elif kind == "engine_loss":
            for name, holder in self.holders.items():
                self.doubt(name, holder)
            self.spoil_snapshot()
        elif kind == "cleared":
            for name, holder in self.holders.items():
                if name in event["holders"]:
                    self.empty(name)
                    holder.inventory, holder.orphans, holder.unassigned = "empty", 0, 0
                    holder.base, holder.born_empty, holder.lost = seq, False, False
                    holder.cleared, holder.base_under = (seq, installed), installed
                elif event["unknown_scope"]:
                    self.doubt(name, holder)
            if event["unknown_scope"]:
                self.spoil_snapshot()
        elif kind == "orphans":
            if event["holder"] in self.holders:
                holder = self.holders[event["holder"]]
                holder.orphans, holder.unassigned = event["orphans"], event["unassigned"]
        elif kind == "drained":
            self.draining = True
            if self.status == "live":
                self.status = "draining"
        elif kind == "closed":
            self.status, self.engine_ended = "closed", event["engine_ended"]
            for name, holder in self.holders.items():
                if event["engine_ended"] and holder.durable is None:
                    self.empty(name)

    def declare(self, opened: Json, seq: int | None, installed: int) -> None:
        for declared in opened["holders"]:
            made, known = Holder(declared), self.holders.get(declared["name"])
            if known is not None:
                for name in KEPT:
                    setattr(made, name, getattr(known, name))
                if made.groups - known.groups:
                    made.base, made.born_empty = None, False
            elif seq is not None and made.inventory == "empty":
                made.base, made.base_under, made.born_empty = seq, installed, True
            self.holders[declared["name"]] = made

    def volatile(self) -> set[str]:
        return {name for name, holder in self.holders.items() if holder.durable is None}

    def doubt(self, name: str, holder: Holder) -> None:
        holder.inventory, holder.lost, holder.base, holder.born_empty = "partial", True, None, False
        for place, copies in self.held.items():
            if place[0] == name:
                for copy in copies.values():
                    copy.state = "uncertain"

    def spoil_snapshot(self) -> None:
        if self.snapshot is not None:
            self.snapshot["broken"] = True

    def empty(self, name: str) -> None:
        for tables in (self.held, self.shadow, self.unverified):
            for place in tables:
                if place[0] == name:
                    tables[place].clear()

    def under(self, alias: bytes, name: str) -> list[tuple[str, Place]]:
        """What is on its way in one domain under a name."""
        return [one for one in self.moving if one[0] == name and one[1][2] == alias]

    def one_end(self, alias: bytes, name: str) -> list[tuple[str, Place]]:
        """A name is ended once; those that are over by that."""
        over = [move for move in self.under(alias, name) if not self.again.get(move)]
        for move in self.under(alias, name):
            if move in over:
                del self.moving[move]
            else:
                self.again[move] -= 1
        return over

    def expire(self, move: tuple[str, Place], gone: set[bytes]) -> None:
        """Nobody waits for these any more: a transfer started once is over when all its others are there."""
        if self.again.get(move):
            return
        place, age, since, ids = self.moving[move]
        rest = tuple(block for block in ids if block not in gone)
        there = self.held.get(place, {})
        if any(block not in there or there[block].state == "pending" for block in rest):
            self.moving[move] = (place, age, since, rest)
        else:
            del self.moving[move]

    def known_place(self, place: Place, profile: int | None = None) -> bool:
        holder = self.holders.get(place[0])
        fits = holder is not None and place[1] in holder.groups
        return fits and (profile is None or (place[2], profile) in self.declared)

    def change(self, alias: bytes, event: Json, seq: int, installed: int, landed: list[Json]) -> None:
        kind = event["type"]
        place: Place = (event.get("holder", ""), event.get("group", 0), alias)
        if kind == "profile_declared":
            self.declared[alias, event["profile"]] = event
            self.retired.discard((alias, event["profile"]))
        elif kind == "profile_retired":
            if (alias, event["profile"]) in self.declared:
                self.retired.add((alias, event["profile"]))
            for where in [one for one in self.held if one[2] == alias]:
                gone = [b for b, copy in self.held[where].items() if copy.number == event["profile"]]
                self.drop(where, gone)
        elif kind in ("block_stored", "transfer_started"):
            since = believed(event["admitted_after"], installed)
            moves = kind == "transfer_started"
            if not self.known_place(place, event["profile"]):
                if not moves:
                    landed.append({"by": kind, "place": place, "ids": event["ids"], "age": since})
                return
            if moves:
                move = (event["transfer"], place)
                self.again[move] = self.again.get(move, 0) + 1 if move in self.moving else 0
                _, age, first, ids = self.moving.get(move, (place, since, seq, ()))
                ids = tuple(dict.fromkeys((*ids, *event["ids"])))
                self.moving[move] = (place, older(age, since), first, ids)
            for block in event["ids"]:
                copy = Copy(
                    profile=self.profile(alias, event["profile"]),
                    number=event["profile"],
                    state="pending" if moves else "committed",
                    lineage="transfer" if moves else event["lineage"],
                    age=since,
                    seq=seq,
                    installed=installed,
                    transfer=event["transfer"] if moves else None,
                )
                copy.doubted = self.too_young(place, block, copy)
                self.put(place, block, copy)
            landed.append({"by": kind, "place": place, "ids": event["ids"], "age": since})
        elif kind == "transfer_committed":
            over = [self.moving[one] for one in self.under(alias, event["transfer"])]
            self.one_end(alias, event["transfer"])
            arrived = {one[0]: self.pending(one[0], event["transfer"]) for one in over}
            every = sorted(block for mine in arrived.values() for block in mine)
            state = "committed" if sha(b"".join(every)) == event["digest"] else "uncertain"
            for where, age, _, ids in over:
                for block in arrived[where]:
                    self.held[where][block].state = state
                landed.append({"by": kind, "place": where, "ids": ids, "age": age})
        elif kind in ("transfer_aborted", "transfer_rejected"):
            for one in self.one_end(alias, event["transfer"]):
                self.drop(one[1], self.pending(one[1], event["transfer"]))
        elif kind == "block_evicted":
            if not event["certain"]:
                for block in event["ids"]:
                    if block in self.held.get(place, {}):
                        self.held[place][block].state = "uncertain"
                return
            copies = self.held.get(place, {})
            waited = [
                (copies[block].transfer, block)
                for block in event["ids"]
                if block in copies and copies[block].state == "pending"
            ]
            self.drop(place, event["ids"])
            if event["reason"] == "expired":
                for move in {(name, place) for name, _ in waited if (name, place) in self.moving}:
                    self.expire(move, {block for name, block in waited if name == move[0]})
        elif kind == "block_invalidated":
            self.drop(place, event["ids"])
            holder = self.holders.get(place[0])
            if holder is None or holder.base is None:
                self.unverified[place] |= set(event["ids"])
        elif kind == "tier_changed":
            source: Place = (event["from_holder"], event["group"], alias)
            target: Place = (event["to_holder"], event["group"], alias)
            if self.known_place(source) and self.known_place(target):
                have = self.held.get(source, {})
                if self.holders[source[0]].durable is not None:
                    out: dict[int | None, list[bytes]] = {}
                    for block in [block for block in event["ids"] if block in have]:
                        out.setdefault(None if have[block].doubted else have[block].age, []).append(block)
                    landed += [
                        {"by": kind, "place": target, "ids": tuple(ids), "age": age}
                        for age, ids in out.items()
                    ]
                moved = {block: have[block] for block in event["ids"] if block in have}
                self.drop(source, moved)
                for block, copy in moved.items():
                    self.put(target, block, copy)

    def profile(self, alias: bytes, number: int) -> str:
        content = dict(self.declared[alias, number]["content"])
        if content["approximate"] is None:
            del content["approximate"]
        plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(plain.encode()).hexdigest()

    def put(self, place: Place, block: bytes, copy: Copy) -> None:
        past = self.shadow.get(place, {})
        if block in past and copy.age is not None and older(past[block], copy.age) != copy.age:
            copy.doubted = True
        if block in self.unverified.get(place, ()):
            copy.doubted = True
        have = self.held[place].get(block)
        if have is None:
            self.held[place][block] = copy
            return
        if "committed" in (have.state, copy.state):
            have.state = "committed"
        have.age = older(have.age, copy.age)
        have.doubted = have.doubted or copy.doubted

    def too_young(self, place: Place, block: bytes, copy: Copy) -> bool:
        """Not computed here, and younger than a copy on another holder that it may have been made of."""
        if copy.lineage in ("prefill", "transfer") or copy.age is None:
            return False
        beside = [one for one in (*self.held, *self.shadow) if one[0] != place[0] and one[2] == place[2]]
        for other in beside:
            have = self.held.get(other, {}).get(block)
            if have is not None and (have.doubted or older(have.age, copy.age) != copy.age):
                return True
            past = self.shadow.get(other, {})
            if block in past and older(past[block], copy.age) != copy.age:
                return True
        return False

    def drop(self, place: Place, ids: Any) -> None:
        for block in list(ids):
            self.held.get(place, {}).pop(block, None)
            self.shadow.get(place, {}).pop(block, None)

    def pending(self, place: Place, transfer: str) -> list[bytes]:
        copies = self.held.get(place, {})
        return [b for b, copy in copies.items() if copy.transfer == transfer and copy.state == "pending"]

    # snapshots and statements

    def replace(
        self, mark: Json, seq: int, installed: int, parts: dict[bytes, list[Json]], landed: list[Json]
    ) -> None:
        name, group, low, high = mark["holder"], mark["group"], mark["low"], mark["high"]
        listed: dict[tuple[bytes, bytes], Copy] = {}
        pending: set[str] = set()
        for alias, events in parts.items():
            place: Place = (name, group, alias)
            for run in (run for event in events if event["type"] == "snapshot_part" for run in event["runs"]):
                inside = [block for block in run["ids"] if low <= block <= high]
                since = believed(run["admitted_after"], installed)
                if (alias, run["profile"]) not in self.declared:
                    self.snapshot = None
                    if run["state"] != "pending":
                        lies = {"by": "snapshot_part", "place": place, "ids": tuple(inside), "age": since}
                        landed.append(lies)
                    continue
                for block in inside:
                    listed[alias, block] = Copy(
                        profile=self.profile(alias, run["profile"]),
                        number=run["profile"],
                        state=run["state"],
                        lineage=run["lineage"],
                        age=since,
                        seq=seq,
                        installed=installed,
                        transfer=run["transfer"],
                    )
                if run["state"] != "pending":
                    landed.append(
                        {
                            "by": "snapshot_part",
                            "place": place,
                            "ids": tuple(inside),
                            "age": since,
                        }
                    )
                elif run["transfer"] is not None:
                    pending.add(run["transfer"])
                    move = (run["transfer"], place)
                    if move not in self.moving:
                        self.moving[move], self.again[move] = (place, since, seq, run["ids"]), 0
        holder = self.holders[name]
        unwatched = self.torn or holder.inventory == "partial"
        unseen = holder.lost and not (self.snapshot is not None and self.snapshot["pool"])
        here = [one for one in self.held if one[:2] == (name, group)]
        before = {
            (place[2], block): self.held[place].pop(block)
            for place in here
            for block in [b for b in self.held[place] if low <= b <= high]
        }
        for (alias, block), copy in listed.items():
            have = before.get((alias, block))
            if have is not None:
                if unseen and (have.state, copy.state) == ("uncertain", "committed"):
                    copy.state = "uncertain"
                age = older(have.age, copy.age)
                copy.doubted = have.doubted or (unwatched and age != copy.age)
                copy.age = age
                if not unwatched:
                    copy.seq, copy.installed, copy.lineage = have.seq, have.installed, have.lineage
            if have is None or unwatched:
                copy.doubted = copy.doubted or self.too_young((name, group, alias), block, copy)
            self.put((name, group, alias), block, copy)
        for place, past in self.shadow.items():
            if place[:2] == (name, group):
                for block in [b for b in past if low <= b <= high]:
                    del past[block]
        if self.snapshot is not None and self.snapshot["name"] == mark["snapshot"]:
            bounds = (int.from_bytes(low, "big"), int.from_bytes(high, "big"))
            self.snapshot["ranges"][name, group].append(bounds)
            self.snapshot["pending"] |= pending

    def finish(self, event: Json) -> None:
        work, self.snapshot = self.snapshot, None
        if work is None or work["name"] != event["snapshot"]:
            return
        for name, holder in self.holders.items():
            for group in holder.groups:
                reached = 0
                for low, high in sorted(work["ranges"].get((name, group), [])):
                    if low > reached:
                        return
                    reached = max(reached, high + 1)
                if reached < WHOLE_SPACE:
                    return
        for entry in event["inventories"]:
            found = self.holders.get(entry["holder"])
            if found is None or (found.lost and not work["pool"]):
                continue
            partial = entry["inventory"] == "partial"
            found.inventory, found.lost = entry["inventory"], found.lost and partial
            found.base, found.born_empty = (None if partial or work["broken"] else work["begin"]), False
            found.base_under = work["under"]
            if self.torn and found.base is not None:
                self.moving = {
                    transfer: moving
                    for transfer, moving in self.moving.items()
                    if moving[0][0] != entry["holder"]
                    or moving[2] >= work["begin"]
                    or transfer[0] in work["pending"]
                }
        self.torn = False
        if not self.sticky and self.status != "closed":
            self.status = "draining" if self.draining else "live"

    def compare(self, alias: bytes, event: Json, seq: int) -> None:
        place: Place = (event["holder"], event["group"], alias)
        self.derived = self.derived or event["source"] == "derived"
        holder = self.holders.get(event["holder"])
        exact = holder is not None and holder.base is not None
        if exact:
            self.stated.add(place)
        count, total = self.sum_of(place)
        if (event["count"], event["checksum"]) == (count, total.to_bytes(16, "big")):
            if exact and place in self.unverified:
                self.unverified[place] &= self.held.get(place, {}).keys()
            return
        if exact:
            self.diverged.append((seq, place))
        if self.whole:
            self.snapshot, self.status = None, "quarantined"

    def sum_of(self, place: Place) -> tuple[int, int]:
        ids = [block for block, copy in self.held.get(place, {}).items() if copy.state != "invalid"]
        return len(ids), sum(int.from_bytes(block, "big") for block in ids) % WHOLE_SPACE


# ---------------------------------------------------------------- the request's case


class Case:
    """A stream under one request: its acks, what came late, what is disputed. `names`: alias -> domain."""

    def __init__(self, epoch: Json, names: dict[bytes, str]) -> None:
        self.epoch, self.names, self.stream = epoch, names, Stream(epoch)
        self.acks: dict[str, Json] = {}
        self.first: dict[str, Json] = {}
        self.standing_from: dict[str, int] = {}
        self.withdrew: set[str] = set()
        self.undone: dict[str, list[int]] = defaultdict(list)
        self.refused: dict[str, Json] = {}
        self.late: list[Json] = []
        self.barriers: dict[str, int] = {}
        self.appeared: dict[Place, int] = {}
        self.disputes: list[str] = []
        self.strange: set[bytes] = set()
        self.other_control = False
        self.closed_at: int | None = None
        self.ended_at: int | None = None
        self.ended_under = self.opened_under = self.said_at = self.reached = -1
        self.said_under: dict[str, int] = defaultdict(lambda: -1)
        self.chained_from = 0
        self.vouched: list[tuple[int, int]] = []
        self.links: list[tuple[str, bytes, bytes]] = []
        self.named_moves: set[tuple[str, str]] = set()
        self.recreated = self.removed = 0
        self.ended: dict[str, list[Ended]] = {how: [] for how in ENDS}
        self.transfers: list[tuple[Any, ...]] = []

    def take_back(self, domain: str) -> None:
        """What was acked before no longer stands."""
        if domain in self.standing_from:
            self.undone[domain].append(self.standing_from.pop(domain))
        self.withdrew.add(domain)

    def say(self, holder: str, seq: int) -> None:
        """A record says that the holder ("": one of them) has something in it."""
        self.said_at = seq
        self.said_under[holder] = self.reached


WORDS = ("closed", "snapshot_end", "statement", "ack", "refused")
"""What counts under the epoch's signature only."""
ENDS = ("cleared", "evicted", "rejected", "closed")
Ended = tuple[str, bytes, str | None]
"""Domain, block, profile."""


class Trial:
    """Everything about one request; `feed` the event lines in order, then `judge`."""

    def __init__(
        self, control: Control, request: Json, alias_keys: dict[str, bytes], starts: dict[int, int]
    ) -> None:
        self.control, self.request, self.keys, self.starts = control, request, alias_keys, starts
        self.no: int = request["number"]
        self.scope: Json = request["scope"]
        self.bound: set[bytes] | None = None
        self.cut = self.missing = 0
        self.named = set(self.scope.get("leaves") or self.scope.get("ids") or ())
        if self.scope["type"] == "prefix":
            self.named = {self.scope["ids"][-1]}
        self.everywhere = self.scope["type"] == "profile"
        self.domains = {d for d in set(control.domains) | set(alias_keys) if self.reaches(d)}
        self.owed = sorted(self.domains & set(alias_keys))
        self.cases: dict[tuple[str, int, str], Case] = {}
        self.of_life: dict[tuple[str, int, str, int], list[Case]] = defaultdict(list)
        self.strangers: set[tuple[str, int, str]] = set()
        self.parents: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        self.torn: dict[str, set[bytes]] = defaultdict(set)
        self.answers: dict[str, dict[bytes, bool | None]] = defaultdict(dict)
        self.discharged: dict[tuple[tuple[str, int, str, int], str], int] = {}
        self.put_in: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        self.shredded: dict[str, str] = {}
        self.gone: list[str] = []
        self.reasons: set[tuple[str, str, str, bool]] = set()
        self.destroyed: set[str] = set()
        self.counter: list[tuple[Any, ...]] = []

    def reaches(self, domain: str) -> bool:
        scope = self.scope
        if scope["type"] == "tenant":
            return bool(self.control.domains.get(domain) == scope["tenant"])
        if scope["type"] == "subject" and domain == f"{scope['domain']}/{scope['subject']}":
            return True
        if scope["type"] == "subject" and scope["leaves"] is None:
            return False
        return scope["type"] == "profile" or bool(domain == scope["domain"])

    def all_of(self, domain: str) -> bool:
        """Whether everything of a domain in scope is in scope."""
        if self.scope["type"] == "subject":
            return bool(domain != self.scope["domain"])
        return self.scope["type"] in ("tenant", "domain")

    def names(self, worker: str, rank: int, epoch_no: int) -> dict[bytes, str]:
        return {alias_of(self.keys[domain], worker, rank, epoch_no): domain for domain in self.owed}

    # reading

    def feed(self, line: Json) -> None:
        kind = line["t"]
        if kind == "leaf":
            return
        if kind in ("stranger", "unreadable"):
            worker, rank, epoch = line["stream"]
            stream = (str(worker), int(rank), str(epoch))
            if kind == "stranger":
                self.strangers.add(stream)
            else:
                bytes.fromhex(line["x"])
                self.unread(stream, int(line["seq"]), int(line["p"]))
            return
        if kind != "event":
            raise Invalid("the evidence holds a line of an unknown kind")
        raw = str(line["h"]).encode()
        bodies = {int(index): str(body).encode() for index, body in line["b"].items()}
        signature = unbase64(line["s"])
        head, seen = read_header(raw)
        if head is None:
            if seen is not None:
                self.unread(seen[:3], seen[3], int(line["p"]))
            return
        stream = (head["worker"], head["rank"], head["epoch"])
        opened = self.open_parts(head, bodies)
        if opened is None:
            self.unread(stream, head["seq"], int(line["p"]))
            return
        epoch = self.control.epochs.get(stream)
        if epoch is None:
            self.strangers.add(stream)
        elif int(line["p"]) == epoch["partition"]:
            self.apply(self.case(epoch), head, raw, signature, int(line["o"]), *opened)

    def open_parts(
        self, head: Json, bodies: dict[int, bytes]
    ) -> tuple[list[Json], dict[bytes, list[Json]]] | None:
        """Part 0 and the parts in scope; None if one of them isn't what the header says."""
        names = self.names(head["worker"], head["rank"], head["epoch_no"])
        told: list[Json] = []
        parts: dict[bytes, list[Json]] = {}
        for index, ref in enumerate(head["parts"]):
            if ref["alias"] is not None and not self.everywhere and ref["alias"] not in names:
                continue
            if index not in bodies:
                raise Invalid(f"part {index} of record {head['seq']} is left out")
            if sha(bodies[index]) != ref["sha256"]:
                return None
            try:
                shape = STREAM_PART if ref["alias"] is None else DOMAIN_PART
                events = list(shape(json.loads(bodies[index]))["events"])
            except (ValueError, RecursionError):
                return None
            if len(events) != ref["events"]:
                return None
            if ref["alias"] is None:
                told = events
            else:
                parts[ref["alias"]] = events
        return told, parts

    def unread(self, stream: tuple[str, int, str], seq: int, partition: int) -> None:
        epoch = self.control.epochs.get(stream)
        if epoch is not None and partition == epoch["partition"]:
            self.case(epoch).stream.unreadable(seq)

    def case(self, epoch: Json) -> Case:
        known = self.cases.get(epoch["stream"])
        if known is not None:
            return known
        made = Case(epoch, self.names(epoch["stream"][0], epoch["stream"][1], epoch["no"]))
        mine = {domain: alias for alias, domain in made.names.items()}
        for other in self.of_life[epoch["memory"]]:
            if other.epoch["no"] > epoch["no"]:
                continue
            for (holder, group, alias), copies in other.stream.held.items():
                here = mine.get(other.names.get(alias, ""))
                if here is not None:
                    past = {b: None if copy.doubted else copy.age for b, copy in copies.items()}
                    made.stream.shadow[holder, group, here].update(past)
            for (holder, group, alias), ids in other.stream.unverified.items():
                here = mine.get(other.names.get(alias, ""))
                if here is not None:
                    made.stream.unverified[holder, group, here] |= ids
        self.cases[epoch["stream"]] = made
        self.of_life[epoch["memory"]].append(made)
        return made

    def apply(
        self, case: Case, head: Json, raw: bytes, signature: bytes | None, offset: int,
        told: list[Json], parts: dict[bytes, list[Json]],
    ) -> None:  # fmt: skip
        seq, installed, stream = head["seq"], head["control"]["offset"], case.stream
        if self.control.whole and self.control.hashes.get(installed) != head["control"]["hash"]:
            case.other_control = True
        signed = signature is not None and signed_by(case.epoch["key"], signature, raw)
        spoken = not signed and any(
            one["type"] in WORDS for one in [*told, *(e for es in parts.values() for e in es)]
        )
        if spoken:
            told = [one for one in told if one["type"] not in WORDS]
            parts = {
                alias: [one for one in events if one["type"] not in WORDS] for alias, events in parts.items()
            }
        again = seq < stream.next
        chained = seq == 0 or (stream.prev != b"" and head["prev"] == stream.prev)
        ended, transfers = self.ending(case, seq, told, parts) if installed >= self.no else ({}, [])
        landed = stream.take(head, sha(raw), told, parts)
        if seq == 0 and stream.first_prev != case.epoch["sha256"]:
            case.disputes.append("chain_break")
        if again:
            return
        case.reached = max(case.reached, installed)
        if not chained:
            case.chained_from = seq
            case.links.clear()
        if signed:
            case.vouched.append((case.chained_from, seq))
        if not signed and (signature is not None or seq == 0 or spoken):
            case.disputes.append("signature_invalid")
        for event in told:
            if event["type"] == "snapshot_begin" and event["opened"]["engine_life"] != case.epoch["life"][2]:
                case.disputes.append("chain_break")
        if landed is None:
            return
        if stream.brought:
            for other in self.of_life[case.epoch["memory"]]:
                other.barriers.clear()
        if any(event["type"] == "snapshot_begin" and event["source"] == "pool" for event in told):
            case.say("", seq)
        for how, copies in ended.items():
            case.ended[how] += copies
        case.transfers += transfers
        if seq == 0:
            case.opened_under = installed
        listed = next((event["holder"] for event in told if event["type"] == "snapshot_range"), "")
        for alias, events in parts.items():
            domain = self.domain(case, alias)
            for event in events:
                self.learn(case, alias, domain, event, seq)
                holder = said_of(event, listed)
                if holder is not None:
                    case.say(holder, seq)
        if signed:
            for domain, block, parent in case.links:
                if self.parents[domain].get(block) != parent:
                    self.answers[domain].clear()
                if self.parents[domain].setdefault(block, parent) != parent:
                    self.torn[domain].add(block)
            case.links.clear()
        for one in landed:
            if one["by"] == "transfer_committed":
                case.say(one["place"][0], seq)
            self.came(case, one, seq, offset, installed)
        self.stored(case, installed, landed, told, parts)
        if stream.engine_ended and case.ended_at is None:
            case.ended_at, case.ended_under = seq, installed
        if stream.status == "closed" and case.closed_at is None:
            case.closed_at = seq
        for alias, events in parts.items():
            domain = self.domain(case, alias)
            for event in events:
                if event["type"] == "ack":
                    self.ack(case, alias, domain, event, seq, offset, installed)
                elif event["type"] == "refused" and event["request"] == self.no:
                    case.refused[domain] = event
                    case.acks.pop(domain, None)
                    case.take_back(domain)

    def domain(self, case: Case, alias: bytes) -> str:
        if alias in case.names:
            return case.names[alias]
        case.strange.add(alias)
        return alias.hex()

    def learn(self, case: Case, alias: bytes, domain: str, event: Json, seq: int) -> None:
        kind = event["type"]
        links: list[tuple[bytes, bytes]] = []
        if kind in ("block_stored", "transfer_started"):
            case.appeared[event["holder"], event["group"], alias] = seq
            links = list(zip(event["ids"], (event["parent"] or ROOT, *event["ids"]), strict=False))
        elif kind == "snapshot_part":
            links = [link for run in event["runs"] for link in zip(run["ids"], run["parents"], strict=True)]
        elif kind == "block_invalidated" and event["request"] == self.no:
            case.removed += len(event["ids"])
        if not self.all_of(domain) and not self.everywhere:
            case.links += [(domain, block, parent) for block, parent in links]
        if kind.startswith(("transfer_", "snapshot_")) and len(self.of_life[case.epoch["memory"]]) > 1:
            names = [run["transfer"] for run in event["runs"]] if kind == "snapshot_part" else []
            names += [event["transfer"]] if kind.startswith("transfer_") else []
            left = {
                (other.names.get(place[2]), name)
                for other in self.of_life[case.epoch["memory"]]
                if other.epoch["no"] < case.epoch["no"]
                for name, place in other.stream.moving
            }
            case.named_moves |= {(domain, name) for name in names if (domain, name) in left}

    def ending(
        self, case: Case, seq: int, told: list[Json], parts: dict[bytes, list[Json]]
    ) -> tuple[dict[str, list[Ended]], list[tuple[Any, ...]]]:
        """What a record is about to end: copies that aren't fresh, each once, and transfers. Whether they are in scope
        is asked when all is read."""
        ended, transfers = {how: [] for how in ENDS}, []
        over: set[tuple[Place, bytes]] = set()
        for event in told:
            if event["type"] == "cleared":
                ended["cleared"] += self.fall(case, set(event["holders"]), over)
            elif event["type"] == "closed" and event["engine_ended"]:
                ended["closed"] += self.fall(case, case.stream.volatile(), over)
        for alias, events in parts.items():
            for event in events:
                if event["type"] == "block_evicted" and event["certain"]:
                    place: Place = (event["holder"], event["group"], alias)
                    ended["evicted"] += self.fall_of(case, place, event["ids"], over)
                elif event["type"] in ("transfer_committed", "transfer_aborted", "transfer_rejected"):
                    how = event["type"].removeprefix("transfer_")
                    for move in case.stream.under(alias, event["transfer"]):
                        if case.stream.again.get(move):
                            continue
                        where, age, since, ids = case.stream.moving[move]
                        if how == "rejected":
                            pending = case.stream.pending(where, event["transfer"])
                            ended["rejected"] += self.fall_of(case, where, pending, over)
                        if self.age(case, where[0], age, since) != "fresh":
                            told_of = (event["transfer"], where[0], len(ids), how, seq)
                            transfers.append((told_of, case.names.get(where[2], where[2].hex()), ids))
        return ended, transfers

    def fall(self, case: Case, holders: set[str], over: set[tuple[Place, bytes]]) -> list[Ended]:
        places = [place for place in case.stream.held if place[0] in holders]
        return [one for place in places for one in self.fall_of(case, place, case.stream.held[place], over)]

    def fall_of(self, case: Case, place: Place, blocks: Any, over: set[tuple[Place, bytes]]) -> list[Ended]:
        copies, found = case.stream.held.get(place, {}), list[Ended]()
        for block in blocks:
            if block not in copies or (place, block) in over:
                continue
            copy = copies[block]
            if self.copy_age(case, place[0], copy) != "fresh":
                over.add((place, block))
                found.append((case.names.get(place[2], place[2].hex()), block, copy.profile))
        return found

    def count(self, ended: list[Ended]) -> int:
        return sum(self.covers(*one) is not False for one in ended)

    def carries(self, domain: str, ids: Any) -> bool:
        return any(self.covers(domain, block, None) is not False for block in ids)

    def died(self, gone: dict[tuple[str, int, str], str]) -> int:
        lives: dict[Any, list[Json]] = defaultdict(list)
        for epoch in sorted(self.control.epochs.values(), key=lambda e: int(e["no"])):
            lives[epoch["life"]].append(epoch)
        total = 0
        for (worker, _, life), epochs in lives.items():
            cases = [self.cases[e["stream"]] for e in epochs if e["stream"] in self.cases]
            if epochs[-1]["stream"] in gone and cases:
                total += self.count(cases[-1].ended["closed"])
                if self.control.exits.get((worker, life), -1) > self.no:
                    total += self.count(self.fall(cases[-1], cases[-1].stream.volatile(), set()))
        return total

    def moved(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for case in sorted(self.cases.values(), key=lambda one: int(one.epoch["no"])):
            open_ = [
                (name, place[0], len(ids), "open", since)
                for (name, _), (place, age, since, ids) in case.stream.moving.items()
                if self.age(case, place[0], age, since) != "fresh"
                and self.carries(case.names.get(place[2], place[2].hex()), ids)
            ]
            over = [told for told, domain, ids in case.transfers if self.carries(domain, ids)]
            found += [(*case.epoch["stream"], *one) for one in (*over, *open_)]
        return found

    def came(self, case: Case, one: Json, seq: int, offset: int, installed: int) -> None:
        place: Place = one["place"]
        domain = self.domain(case, place[2])
        since = self.discharged.get((case.epoch["memory"], domain))
        if not one["ids"]:
            return
        outlived = since is None or since > case.epoch["no"]
        if outlived and not self.outlived(case.epoch, one, installed):
            return
        if one["by"] == "snapshot_part" and domain not in case.first:
            return
        copy = case.stream.held.get(place, {}).get(one["ids"][0])
        age = self.age(case, place[0], one["age"], seq)
        if age == "fresh" and one["by"] in ("snapshot_part", "transfer_started", "tier_changed"):
            return
        if age == "fresh" and self.all_of(domain):
            case.recreated += len(one["ids"])
            return
        profile = copy.profile if copy is not None else None
        case.late.append(
            {
                **one,
                "seq": seq,
                "offset": offset,
                "domain": domain,
                "profile": profile,
                "is": age,
                "under": installed,
                "outlived": outlived,
            }
        )

    def stored(
        self, case: Case, installed: int, landed: list[Json], told: list[Json], parts: dict[bytes, list[Json]]
    ) -> None:
        """Under which orders something was first and last said to lie in a store, by domain (None: nobody's)."""
        landings = [(one["place"][0], one["place"][2]) for one in landed if one["ids"]]
        landings += [
            (event["to_holder"], alias)
            for alias, events in parts.items()
            for event in events
            if event["type"] == "tier_changed" and event["ids"]
        ]
        there: list[tuple[str, str | None]] = [
            (holder, case.names.get(alias, alias.hex())) for holder, alias in landings
        ]
        there += [
            (one["holder"], None)
            for one in told
            if one["type"] == "orphans" and one["orphans"] + one["unassigned"] > 0
        ]
        for name, domain in there:
            holder = case.stream.holders.get(name)
            if holder is not None and holder.durable is not None:
                known = self.put_in[holder.durable, domain]
                known[:] = (
                    [min(installed, *known), max(case.reached, *known)]
                    if known
                    else [installed, case.reached]
                )

    def rings_without_key(self, durable: str) -> str:
        """The rings in which every key was destroyed under which anything in scope may lie in the store; "" if not."""
        control, rings = self.control, set[str]()
        names: dict[str | None, bytes | None] = {None: None}
        for domain in self.domains:
            if domain not in self.keys:
                return ""
            names[domain] = store_alias_of(self.keys[domain], durable)
        for domain, alias in names.items():
            said = [
                (at, key) for at, store, name, key in control.ciphers if (store, name) == (durable, alias)
            ]
            if not any(at > control.handed_at.get(durable, control.end) for at, _ in said):
                return ""
            seen, over = self.put_in[durable, domain], -1
            if seen and seen[0] < said[0][0]:
                return ""
            for _, key in said:
                holding = control.rings.get(key, {}) if key is not None else {}
                if not holding or any(ring["gone"] is None for ring in holding.values()):
                    return ""
                over = max(over, *(ring["gone"] for ring in holding.values()))
                rings |= holding.keys()
            if seen and seen[1] >= over:
                return ""
        return ", ".join(sorted(rings)) if self.domains else ""

    def outlived(self, epoch: Json, one: Json, installed: int) -> bool:
        """An old landing told by an epoch that isn't its life's newest, behind a nonce of the request."""
        old = one["age"] is not None and one["age"] < self.no
        asked = any(nonce <= installed for nonce, request in self.control.nonces if request == self.no)
        newer = any(
            e["life"] == epoch["life"] and e["no"] > epoch["no"] for e in self.control.epochs.values()
        )
        return old and asked and newer and one["by"] in ("block_stored", "transfer_committed")

    def age(self, case: Case, holder: str, admitted: int | None, seq: int) -> str:
        if admitted is not None:
            return "old" if admitted < self.no else "fresh"
        barrier = case.barriers.get(holder)
        return "fresh" if barrier is not None and seq > barrier else "unknown"

    def copy_age(self, case: Case, holder: str, copy: Copy) -> str:
        if copy.lineage == "prefill" and copy.installed < self.no:
            return "old"
        return self.age(case, holder, None if copy.doubted else copy.age, copy.seq)

    def ack(
        self,
        case: Case,
        alias: bytes,
        domain: str,
        event: Json,
        seq: int,
        offset: int,
        installed: int,
    ) -> None:
        standing = next((one for one in event["requests"] if one["request"] == self.no), None)
        if standing is None or installed < self.no:
            return
        stream = case.stream
        if standing["old_left"] == 0:
            self.raise_barriers(case)
        residents = [
            (place[0], block, copy.profile, self.copy_age(case, place[0], copy))
            for place, copies in stream.held.items()
            if place[2] == alias
            for block, copy in copies.items()
        ]
        found = {
            "seq": seq, "offset": offset, "installed": installed, "standing": standing, "nonce": event["nonce"],
            "residents": [one for one in residents if one[3] != "fresh"],
            "held": [(place[0], *stream.sum_of(place)) for place in stream.held if place[2] == alias],
            "bases": {
                name: (
                    one.base, one.born_empty, one.inventory, one.durable, one.orphans, one.unassigned,
                    one.groups, one.base_under,
                )
                for name, one in stream.holders.items()
            },
        }  # fmt: skip
        case.acks[domain] = found
        case.refused.pop(domain, None)
        case.late = [one for one in case.late if one["domain"] != domain or one["is"] != "unknown"]
        if standing["old_left"] == 0:
            case.first.setdefault(domain, found)
            case.standing_from.setdefault(domain, installed)
            self.discharged.setdefault((case.epoch["memory"], domain), case.epoch["no"])
        else:
            case.take_back(domain)

    def raise_barriers(self, case: Case) -> None:
        stream = case.stream
        if stream.opened is None or len(stream.holders) != 1:
            return
        for one in self.of_life[case.epoch["memory"]]:
            if one.stream.brought or one.stream.holders.keys() - stream.holders.keys():
                return
        ((name, holder),) = stream.holders.items()
        if holder.durable is not None or name in case.barriers:
            return
        if holder.cleared is not None and holder.cleared[1] >= self.no:
            case.barriers[name] = holder.cleared[0]
        elif holder.born_empty and case.opened_under >= self.no and not self.heard_before(case.epoch):
            case.barriers[name] = 0

    def may_have_told(self, epoch: Json) -> bool:
        """It has told something, or may have where the log was cut."""
        return epoch["stream"] in self.cases or self.starts.get(epoch["partition"], 0) > 0

    def heard_before(self, epoch: Json) -> bool:
        return any(
            one["life"] == epoch["life"] and one["no"] < epoch["no"] and self.may_have_told(one)
            for one in self.control.epochs.values()
        )

    # judging

    def covers(self, domain: str, block: bytes, profile: str | None) -> bool | None:
        """Whether a block is in scope; None if that can't be told."""
        if self.all_of(domain):
            return True
        if self.everywhere:
            wanted = (self.scope["profile"], *(self.scope["others"] or ()))
            return None if profile is None else profile in {digest.hex() for digest in wanted}
        walked: list[bytes] = []
        answers, at = self.answers[domain], block
        while at not in answers:
            answers[at] = None  # until it is known; what leads back to itself can't be told
            walked.append(at)
            if at in self.named:
                answers[at] = True
            elif at == ROOT:
                answers[at] = False
            elif at in self.parents[domain] and at not in self.torn[domain]:
                at = self.parents[domain][at]
        found = answers[at]
        for one in reversed(walked):
            if one not in self.named and one != ROOT:
                if found is False and self.bound is not None and one in self.bound:
                    found = None
                answers[one] = found
        return answers[block]

    def add(self, condition: str, reason: str, subject: str, waits: bool = False) -> None:
        self.reasons.add((condition, reason, subject, waits))

    def lives(self) -> tuple[list[Json], dict[tuple[str, int, str], str]]:
        """Engine lives that owe, and the streams of those that are proven gone."""
        lives: dict[tuple[str, int, str], list[Json]] = defaultdict(list)
        for epoch in sorted(self.control.epochs.values(), key=lambda e: int(e["no"])):
            lives[epoch["life"]].append(epoch)
        owing: list[Json] = []
        gone: dict[tuple[str, int, str], str] = {}
        for epochs in lives.values():
            cases = [self.cases[e["stream"]] for e in epochs if e["stream"] in self.cases]
            if epochs[-1]["life"][0] == CANARY and not any(c.appeared or c.stream.declared for c in cases):
                continue
            ranks = [e for e in self.control.epochs.values() if e["life"][::2] == epochs[-1]["life"][::2]]
            proof = self.ended(epochs, cases, ranks)
            if proof:
                gone |= {epoch["stream"]: proof for epoch in epochs}
                continue
            last = epochs[-1]
            case = self.cases.get(last["stream"])
            owing.append(
                {"epoch": last, "earlier": epochs[:-1], "case": case, "absent": self.absent(last, case)}
            )
        return owing, gone

    def ended(self, epochs: list[Json], cases: list[Case], ranks: list[Json]) -> str:
        worker, _, life = epochs[-1]["life"]
        said = {case.epoch["stream"]: max(case.said_under.values(), default=-1) for case in cases}
        attested = self.control.exits.get((worker, life))
        if attested is not None and all(epoch["no"] < attested for epoch in ranks):
            heard = [self.cases[e["stream"]] for e in ranks if e["stream"] in self.cases]
            if all(under < attested for case in heard for under in case.said_under.values()):
                return f"exit attested (kv.control/{attested})"
        last = self.cases.get(epochs[-1]["stream"])
        if last is None or last.ended_at is None or last.stream.sticky or last.disputes:
            return ""
        others = [under for stream, under in said.items() if stream != last.epoch["stream"]]
        after = last.said_at > last.ended_at or max(others, default=-1) >= last.ended_under
        twice = any(kind == "equivocation" for kind, _ in last.stream.faults)
        return "" if after or twice else f"closed with its engine (record {last.ended_at})"

    def absent(self, epoch: Json, case: Case | None) -> str:
        fence = self.control.fences.get(epoch["stream"])
        if fence is not None:
            return f"fenced ({fence})"
        if self.control.newest(*epoch["stream"][:2])["stream"] != epoch["stream"]:
            return "superseded"
        return "closed" if case is not None and case.closed_at is not None else ""

    def judge(self, anchoring: Json) -> Json:
        self.destroyed = self.no_longer()
        owing, gone = self.lives()
        self.p1(owing, anchoring)
        self.p2(owing)
        for one in owing:
            if one["case"] is not None:
                self.p3(one)
                self.p4(one)
                self.p7(one)
                self.p8(one)
        nonce = self.p9(owing)
        recreated = self.p5(owing, set(gone), nonce)
        self.p6(owing, nonce)
        answered = self.all_acked(owing)
        waits = any(reason[3] for reason in self.reasons)
        kind = "PENDING" if waits else "UNPROVABLE" if self.reasons else "PROVEN"
        return {
            "kind": "REFUTED" if self.counter else kind,
            "conditions": {f"P{n}": self.standing(f"P{n}", answered) for n in range(1, 10)},
            "reasons": self.reasons,
            "counter": sorted(self.counter, key=repr),
            "recreated": recreated,
            "removed": sum(case.removed for case in self.cases.values()),
            **{how: sum(self.count(case.ended[how]) for case in self.cases.values()) for how in ENDS[:3]},
            "died": self.died(gone),
            "transfers": self.moved(),
            "nonce": nonce,
            "holders": sorted(self.discharges(owing, gone), key=repr),
            "anchoring": anchoring["line"],
        }

    def no_longer(self) -> set[str]:
        """Stores that were destroyed and have not been used since."""
        found = {n: at for n, at in self.control.destroyed.items() if self.control.enrolled.get(n, -1) < at}
        for case in self.cases.values():
            for name, holder in case.stream.holders.items():
                at = found.get(holder.durable or "")
                if at is not None and (case.epoch["no"] >= at or case.said_under[name] >= at):
                    del found[holder.durable or ""]
        return set(found)

    def standing(self, condition: str, answered: bool) -> str:
        if any(("P4" if one[7] == "ack" else "P5") == condition for one in self.counter):
            return "refuted"
        mine = [reason for reason in self.reasons if reason[0] == condition]
        if any(reason[1] == "not_evaluated" for reason in mine):
            return "not_evaluated"
        if any(reason[3] for reason in mine):
            return "waiting"
        if mine or (condition == "P2" and not answered):
            return "unmet"
        return "not_evaluated" if condition in ("P3", "P4", "P5") and not answered else "met"

    def all_acked(self, owing: list[Json]) -> bool:
        acks = [one["case"] and one["case"].acks.get(domain) for one in owing for domain in self.owed]
        return all(ack is not None and ack["standing"]["old_left"] == 0 for ack in acks)

    def p1(self, owing: list[Json], anchoring: Json) -> None:
        control = self.control
        if control.start not in (None, 0):
            self.add("P1", "retention_truncated", "kv.control")
        if control.holes:
            self.add("P1", "topic_compacted", "kv.control")
        if not control.log:
            self.add("P1", "signature_invalid", "kv.control")
        for offset in control.broken[:20]:
            self.add("P1", "signature_invalid", f"kv.control/{offset}")
        for offset in control.unread[:20]:
            self.add("P1", "unparseable_record", f"kv.control/{offset}")
        for one in owing:
            if one["case"] is not None and one["case"].other_control:
                self.add("P1", "chain_break", path(one["epoch"]))
        if anchoring["problems"]:
            self.add("P1", "checkpoint_unverified", "kv.audit")
        if anchoring["witnessed"] < anchoring["quorum"]:
            self.add("P1", "witness_quorum_missing", "kv.audit")

    def p2(self, owing: list[Json]) -> None:
        for stream in self.strangers:
            self.add("P2", "membership_incomplete", "/".join(map(str, stream)))
        if not self.domains:
            self.add("P2", "scope_undecidable", f"request {self.no}")
        if self.scope["type"] == "subject" and self.scope["pseudonym"] is not None:
            if self.bound is None:
                self.add("P2", "not_evaluated", f"request {self.no}")
            else:
                if self.bound and self.scope["leaves"] is None:
                    self.add("P2", "scope_undecidable", f"request {self.no}")
                if self.cut:
                    self.add("P2", "retention_truncated", f"request {self.no}")
                if self.missing:
                    self.add("P2", "topic_compacted", f"request {self.no}")
        self.membership_told = self.inventory({one["epoch"]["life"] for one in owing})
        for domain in self.domains - set(self.keys):
            self.add("P2", "scope_undecidable", domain)
        if self.scope["type"] == "tenant":
            tenant = self.scope["tenant"]
            for domain, admitted in self.control.admitted:
                if admitted == tenant and self.control.domains.get(domain) != tenant:
                    self.add("P2", "shared_domain", domain)
        for one in owing:
            for domain in self.owed:
                self.acked(one, domain)
        standing = {one["epoch"]["stream"] for one in owing}
        owes = {one["epoch"]["life"] for one in owing}
        for stream, case in self.cases.items():
            if case.strange and (stream in standing or self.left(case, case.epoch["life"] in owes)):
                self.add("P2", "scope_undecidable", path(case.epoch))

    def left(self, case: Case, owes: bool) -> bool:
        """Whether something of an alias that nobody knows lies in a store still, or is on its way in a life that
        owes."""
        for place, copies in case.stream.held.items():
            durable = case.stream.holders[place[0]].durable
            if copies and durable and durable not in self.destroyed and place[2] in case.strange:
                return True
        return owes and any(place[2] in case.strange for _, place in case.stream.moving)

    def inventory(self, owes: set[tuple[str, int, str]]) -> str:
        """Compares the registry with what was stated behind the request; the assumption to be stated."""
        if not self.control.inventories:
            return "membership: self-declared"
        behind = {offset: one for offset, one in self.control.inventories.items() if offset > self.no}
        if not behind:
            self.add("P2", "membership_incomplete", f"request {self.no}", True)
            return ""
        bodies = [epoch["body"] for epoch in self.control.epochs.values()]
        self.gone = []
        for at, stated in behind.items():
            for member in stated["members"]:
                name, pod = member["worker"], member["pod"]
                if any(b["worker"] == name and pod in (None, b["pod"]) for b in bodies):
                    continue
                who = name if pod is None else f"{name} in pod {pod}"
                over = [
                    later
                    for later, other in behind.items()
                    for one in other["gone"] or ()
                    if later > at and one["worker"] == name and one["pod"] in (None, pod)
                ]
                if over:
                    told = f"named by {stated['source']} (kv.control/{at})"
                    self.gone.append(f"member {who}, {told}, is gone by the word of kv.control/{max(over)}")
                else:
                    self.add("P2", "membership_incomplete", who)
        last = max(behind)
        for member in behind[last]["members"]:
            name, pod = member["worker"], member["pod"]
            theirs = [
                epoch
                for epoch in self.control.epochs.values()
                if epoch["body"]["worker"] == name and pod in (None, epoch["body"]["pod"])
            ]
            ends = [self.control.exits.get(epoch["life"][::2], last) for epoch in theirs]
            if theirs and max(ends) < last and not any(epoch["life"] in owes for epoch in theirs):
                who = name if pod is None else f"{name} in pod {pod}"
                self.add("P2", "membership_incomplete", who, True)
        count, source = len(behind[last]["members"]), behind[last]["source"]
        return f"membership: inventory of {count} by {source} (kv.control/{last})"

    def acked(self, one: Json, domain: str) -> None:
        case, subject, live = one["case"], path(one["epoch"]), not one["absent"]
        ack = case.acks.get(domain) if case is not None else None
        if ack is not None and ack["standing"]["old_left"] == 0:
            return
        refusal = case.refused.get(domain) if case is not None else None
        if refusal is not None:
            waits = live and refusal["reason"] in ("blocks_in_use", "engine_error")
            self.add("P2", "delete_refused", subject, waits)
        elif live:
            start = self.starts.get(one["epoch"]["partition"], 0)
            lost = ack is None and start > 0 and (case is None or min(case.stream.seen, default=1) > 0)
            self.add("P2", "retention_truncated" if lost else "frontier_behind", subject, True)
        else:
            words = {"fenced (timeout)": "death_by_timeout_only", "superseded": "epoch_unfenced"}
            self.add("P6", words.get(one["absent"], "missing_ack"), subject)

    def last_acks(self, one: Json) -> Iterator[tuple[str, Json]]:
        for domain in self.owed:
            ack = one["case"].acks.get(domain)
            if ack is not None and ack["standing"]["old_left"] == 0:
                yield domain, ack

    def exact_since(self, one: Json, base: tuple[Any, ...]) -> Any:
        since, born, _, durable, *_ = base
        if not born:
            return since
        if durable is None:
            return None if any(self.may_have_told(e) for e in one["earlier"]) else since
        for epoch in [e for e in self.control.epochs.values() if e["no"] < one["epoch"]["no"]]:
            case = self.cases.get(epoch["stream"])
            if (case is None or case.stream.opened is None) and self.may_have_told(epoch):
                return None
            if case is not None and any(h.durable == durable for h in case.stream.holders.values()):
                return None
        return since

    def foreign(self, one: Json, base: tuple[Any, ...]) -> bool:
        if base[3] in self.destroyed:
            return True
        return base[3] is not None and self.control.owners.get(base[3]) != one["epoch"]["life"][0]

    def p3(self, one: Json) -> None:
        case: Case = one["case"]
        subject, live = path(one["epoch"]), not one["absent"]
        for dispute in case.disputes:
            self.add("P3", dispute, subject)
        for kind, _ in case.stream.faults:
            if kind in ("chain_break", "equivocation"):
                self.add("P3", kind, subject)
        opened = case.stream.opened
        if opened is not None and opened["engine_life"] != one["epoch"]["life"][2]:
            self.add("P3", "chain_break", subject)
        if any(earlier["partition"] != one["epoch"]["partition"] for earlier in one["earlier"]):
            self.add("P3", "chain_break", subject)
        for _, ack in self.last_acks(one):
            if case.stream.overtaken > ack["seq"]:
                self.add("P3", "seq_gap", subject, live)
            bases = ack["bases"] or {"(no holder declared)": (None, False, "partial", None, 0, 0, set(), -1)}
            for name, holder in case.stream.holders.items():
                later = (None, False, holder.inventory, holder.durable, 0, 0, set(), -1)
                kept = name in ack["bases"] and holder.groups <= ack["bases"][name][6]
                if ack["bases"] and not kept and not self.foreign(one, later):
                    self.add("P3", "inventory_incomplete", f"{subject} {name}", live)
            for earlier in [self.cases[e["stream"]] for e in one["earlier"] if e["stream"] in self.cases]:
                for name, holder in earlier.stream.holders.items():
                    kept = name in ack["bases"] and holder.groups <= ack["bases"][name][6]
                    if holder.durable is None and not kept:
                        self.add("P3", "inventory_incomplete", f"{subject} {name}", live)
            for name, base in bases.items():
                if self.exact_since(one, base) is not None or self.foreign(one, base):
                    continue
                faults = [kind for kind, seq in case.stream.faults if seq <= ack["seq"]]
                last = faults[-1] if faults else ""
                if last in ("unreadable", "illegal"):
                    self.add("P3", "unparseable_record", f"{subject} {name}", live)
                elif last == "gap":
                    start = self.starts.get(one["epoch"]["partition"], 0)
                    cut = min(case.stream.seen, default=0) > 0 and start > 0
                    self.add("P3", "retention_truncated" if cut else "seq_gap", f"{subject} {name}", live)
                elif not last or base[2] == "partial":
                    self.add("P3", "inventory_incomplete", f"{subject} {name}", live)

    def p4(self, one: Json) -> None:
        case: Case = one["case"]
        subject, live = path(one["epoch"]), not one["absent"]
        for domain, ack in self.last_acks(one):
            old: dict[str, list[bytes]] = defaultdict(list)
            for holder, block, profile, age in ack["residents"]:
                base = ack["bases"].get(holder)
                if base is not None and self.foreign(one, base):
                    continue
                inside = self.covers(domain, block, profile)
                if inside is None:
                    self.add("P4", "scope_undecidable", subject)
                elif inside and age == "unknown":
                    self.add("P4", "unknown_lineage", subject)
                elif inside:
                    old[holder].append(block)
            for holder, blocks in old.items():
                base = ack["bases"].get(holder)
                sound = base is not None and self.exact_since(one, base) is not None
                sound = sound and not case.stream.faults and not case.disputes and not case.other_control
                differs = any(place[0] == holder for _, place in case.stream.diverged)
                if not sound or differs:
                    self.add("P4", "inventory_divergence", f"{subject} {holder}")
                else:
                    where = (one["epoch"]["partition"], ack["offset"], holder, "ack")
                    self.counter.append((*one["epoch"]["stream"], ack["seq"], *where, None, *shown(blocks)))
            loose = ack["standing"]["orphans"] + ack["standing"]["unassigned"]
            loose += sum(base[4] + base[5] for base in ack["bases"].values())
            if loose:
                self.add("P4", "inventory_incomplete", subject, live)

    def p5(self, owing: list[Json], dead: set[tuple[str, int, str]], nonce: int | None) -> int:
        newest = {one["epoch"]["life"]: one for one in owing}
        live = {one["epoch"]["stream"] for one in owing if not one["absent"]}
        recreated = sum(case.recreated for case in self.cases.values())
        for case in sorted(self.cases.values(), key=lambda one: int(one.epoch["no"])):
            stream = case.epoch["stream"]
            for late in case.late:
                vouched = any(low <= late["seq"] <= high for low, high in case.vouched)
                early = nonce is not None and late["under"] < nonce
                if late["outlived"] and (early or nonce is None):
                    continue
                heir = newest.get(case.epoch["life"])
                if not vouched and heir is not None and heir["case"] not in (None, case):
                    ack = heir["case"].acks.get(late["domain"])
                    if ack is not None and late["under"] < ack["installed"]:
                        continue
                inside = [self.covers(late["domain"], block, late["profile"]) for block in late["ids"]]
                yes, maybe_ = inside.count(True), inside.count(None)
                if late["is"] == "fresh":
                    recreated += yes
                elif late["is"] == "old":
                    if yes and late["by"] != "transfer_started" and not vouched:
                        waits = stream in live and not case.stream.sticky and late["seq"] >= case.chained_from
                        if stream not in dead:
                            reason = "frontier_behind" if waits else "signature_invalid"
                            self.add("P5", reason, "/".join(map(str, stream)), waits)
                    elif yes and late["by"] != "transfer_started":
                        where = (case.epoch["partition"], late["offset"], late["place"][0], late["by"])
                        ids = tuple(block.hex() for block in late["ids"][:8])
                        self.counter.append((*stream, late["seq"], *where, late["age"], yes, ids))
                    if maybe_ and stream not in dead:
                        self.add("P5", "scope_undecidable", "/".join(map(str, stream)))
                elif (yes or maybe_) and stream not in dead:
                    self.add("P5", "unknown_lineage", "/".join(map(str, stream)))
        del self.counter[20:]
        return recreated

    def p6(self, owing: list[Json], nonce: int | None) -> None:
        declared = {
            h.durable for case in self.cases.values() for h in case.stream.holders.values() if h.durable
        }
        for durable in (declared | set(self.control.owners)) - self.destroyed:
            owner = self.control.owners.get(durable)
            theirs = [one for one in owing if one["epoch"]["life"][0] == owner]
            answering = [one for one in theirs if all(self.answers_for(one, d, durable) for d in self.owed)]
            if not any(self.listed_last(one, owing, durable, nonce) for one in answering):
                rings = self.rings_without_key(durable)
                if rings:
                    self.shredded[durable] = rings
                    continue
                waits = any(not one["absent"] for one in theirs)
                self.add("P6", "durable_tier_uncovered", durable, waits)

    def listed_last(self, one: Json, owing: list[Json], durable: str, nonce: int | None) -> bool:
        """Whether its base in the store is younger than what others say that they have put there."""
        owes = {other["epoch"]["life"]: other for other in owing}
        for stream, case in self.cases.items():
            life = case.epoch["life"]
            other = owes.get(life)
            if life == one["epoch"]["life"] or (other is not None and stream[0] == one["epoch"]["life"][0]):
                continue
            until = self.control.exits.get((life[0], life[2]), nonce) if other is None else nonce
            if until is None:
                continue
            names = {name for name, holder in case.stream.holders.items() if holder.durable == durable}
            for domain in self.owed:
                bases = one["case"].acks[domain]["bases"].values()
                if all(base[7] >= until for base in bases if base[3] == durable):
                    continue
                ack = case.acks.get(domain) if other is not None and other["case"] is case else None
                if ack is not None and ack["standing"]["old_left"] == 0:
                    there = [
                        (block, profile) for name, block, profile, _ in ack["residents"] if name in names
                    ]
                else:
                    there = [
                        (block, copy.profile)
                        for place, copies in case.stream.held.items()
                        if place[0] in names and case.names.get(place[2]) == domain
                        for block, copy in copies.items()
                        if self.copy_age(case, place[0], copy) != "fresh"
                    ]
                    loose = [case.stream.holders[name] for name in names]
                    if any(holder.orphans or holder.unassigned for holder in loose):
                        return False
                if any(self.covers(domain, block, profile) is not False for block, profile in there):
                    return False
        return True

    def answers_for(self, one: Json, domain: str, durable: str) -> bool:
        ack = one["case"].acks.get(domain) if one["case"] is not None else None
        if ack is None or ack["standing"]["old_left"]:
            return False
        bases = [base for base in ack["bases"].values() if base[3] == durable]
        return bool(bases) and all(self.exact_since(one, base) is not None for base in bases)

    def p7(self, one: Json) -> None:
        case: Case = one["case"]
        for epoch in (*one["earlier"], one["epoch"]):
            told = self.cases.get(epoch["stream"])
            for seq, place in told.stream.diverged if told is not None else ():
                holder = case.stream.holders.get(place[0])
                history = holder is not None and holder.cleared is not None
                if history and (case is not told or holder.cleared[0] > seq):  # type: ignore[union-attr, index]
                    continue
                self.add("P7", "inventory_divergence", f"{path(epoch)} {place[0]}")

    def p8(self, one: Json) -> None:
        case: Case = one["case"]
        for alias, domain in case.names.items():
            for place, age, seq, ids in case.stream.moving.values():
                if place[2] != alias or self.age(case, place[0], age, seq) == "fresh":
                    continue
                if any(self.covers(domain, block, None) is not False for block in ids):
                    self.add("P8", "open_transfer", path(one["epoch"]), not one["absent"])
        told = [self.cases[e["stream"]] for e in one["earlier"] if e["stream"] in self.cases]
        for index, before in enumerate(told):
            named = set[tuple[str, str]]().union(*(later.named_moves for later in (*told[index + 1 :], case)))
            for (name, _), (place, age, seq, ids) in before.stream.moving.items():
                domain = before.names.get(place[2])
                if domain is None or (domain, name) in named:
                    continue
                if self.age(before, place[0], age, seq) == "fresh":
                    continue
                if any(self.covers(domain, block, None) is not False for block in ids):
                    self.add("P8", "open_transfer", path(one["epoch"]), not one["absent"])

    def p9(self, owing: list[Json]) -> int | None:
        for nonce, request in sorted(self.control.nonces):
            if request == self.no and all(self.before(one, d, nonce) for one in owing for d in self.owed):
                for one in owing:
                    for domain in self.owed:
                        if not self.answered(one, domain, nonce):
                            self.add("P9", "frontier_behind", path(one["epoch"]), not one["absent"])
                return nonce
        if owing:
            ready = self.all_acked(owing)
            self.add("P9", "frontier_behind" if ready else "not_evaluated", f"request {self.no}", ready)
        return None

    def before(self, one: Json, domain: str, nonce: int) -> bool:
        epochs = [*one["earlier"], one["epoch"]]
        if epochs[0]["no"] > nonce and self.began_empty(epochs):
            return True
        cases = [self.cases[e["stream"]] for e in epochs if e["stream"] in self.cases]
        for case in reversed(cases):
            if case.standing_from.get(domain, nonce) < nonce:
                undone = [one for told in cases for one in told.undone[domain]]
                for index, told in enumerate(cases):
                    if domain in told.standing_from and any(domain in x.withdrew for x in cases[index + 1 :]):
                        undone.append(told.standing_from[domain])
                asked = [n for n, of in self.control.nonces if of == self.no and n < nonce]
                return len([n for n in asked if n > min(undone, default=nonce)]) >= len(undone)
            if domain in case.withdrew:
                return False
        return False

    def began_empty(self, epochs: list[Json]) -> bool:
        """Whether the first epoch of a life that may have told anything found nothing in it."""
        for epoch in epochs:
            case = self.cases.get(epoch["stream"])
            if case is not None:
                opened = case.stream.opened if 0 in case.stream.seen else None
                return opened is not None and all(one["inventory"] == "empty" for one in opened["holders"])
            if self.starts.get(epoch["partition"], 0) > 0:
                return False
        return True

    def answered(self, one: Json, domain: str, nonce: int) -> bool:
        ack = one["case"].acks.get(domain) if one["case"] is not None else None
        if ack is None:
            return False
        if ack["nonce"] is not None and ack["nonce"] >= nonce:
            return bool(ack["installed"] >= nonce)
        return bool(one["epoch"]["no"] > nonce)

    def discharges(
        self, owing: list[Json], gone: dict[tuple[str, int, str], str]
    ) -> Iterator[tuple[Any, ...]]:
        """One row for each holder, with what the statement says of it, in the order of HOLDER_FACTS."""
        rows = [(one["epoch"], one["case"], "") for one in owing]
        rows += [(self.control.epochs[s], self.cases.get(s), proof) for s, proof in gone.items()]
        for epoch, case, proof in rows:
            acks = [case.acks[d] for d in self.domains if d in case.acks] if case is not None else []
            done = bool(acks) and len(acks) == len(self.domains)
            done = done and all(ack["standing"]["old_left"] == 0 for ack in acks)
            last: Json = max(acks, key=lambda ack: int(ack["seq"]), default={})
            told = (*(last.get(name) for name in ("seq", "offset", "installed", "nonce")),)
            left = sum(ack["standing"]["old_left"] for ack in acks) if acks else None
            removed = sum(ack["standing"]["removed"] for ack in acks)
            holders: dict[str, Holder | None] = {"(never opened)": None}
            if case is not None and case.stream.holders:
                holders = dict(case.stream.holders)
            for name, holder in holders.items():
                how = proof or ("ack" if done else "none")
                what: tuple[Any, ...] = ("unknown", None, "unknown")
                if holder is not None:
                    what = (holder.declared["tier"], holder.durable, holder.inventory)
                if holder is not None and holder.durable is not None:
                    rings = self.rings_without_key(holder.durable)
                    how = f"key destroyed in rings {rings}" if rings else "none"
                    how = "ack" if done and not proof else how
                    how = "destroyed" if holder.durable in self.destroyed else how
                yield (
                    *epoch["stream"],
                    epoch["life"][2],
                    epoch["no"],
                    name,
                    *what,
                    how,
                    *told,
                    left,
                    removed,
                    case.stream.next - 1 if case is not None and case.stream.seen else None,
                    *self.held_at(acks, name, holder),
                    self.stated(case, name, holder),
                )

    def held_at(self, acks: list[Json], name: str, holder: Holder | None) -> tuple[int | None, str | None]:
        """What was held at the last acks, over all domains."""
        mine = [one for ack in acks for one in ack["held"] if holder is not None and one[0] == name]
        if not acks:
            return None, None
        return sum(one[1] for one in mine), f"{sum(one[2] for one in mine) % WHOLE_SPACE:032x}"

    def stated(self, case: Case | None, name: str, holder: Holder | None) -> str:
        if case is None or holder is None:
            return "none"
        mine = {place for place in case.stream.stated if place[0] == name}
        if not mine or any(place[0] == name and place not in mine for place in case.appeared):
            return "none"
        return "derived" if case.stream.derived else "pool"

    def membership(self) -> Json:
        """What the statement says of the fleet."""
        lives: dict[Any, list[Json]] = defaultdict(list)
        for epoch in sorted(self.control.epochs.values(), key=lambda e: int(e["no"])):
            lives[epoch["life"]].append(epoch)
        canaries = []
        for (worker, _, _), epochs in lives.items():
            cases = [self.cases[e["stream"]] for e in epochs if e["stream"] in self.cases]
            if worker == CANARY and not any(c.appeared or c.stream.declared for c in cases):
                canaries.append(path(epochs[-1]))
        return {
            "basis": (self.membership_told or "membership: not evaluated").removeprefix("membership: "),
            "operator": key_id(self.control.operator),
            "lives": len(lives),
            "streams": len(self.control.epochs),
            "canaries": canaries,
            "strangers": ["/".join(map(str, one)) for one in sorted(self.strangers)],
            "keys": [
                {"key": name, "roles": sorted(key["roles"]), "revoked_at": key["revoked_at"]}
                for name, key in sorted(self.control.keys.items())
            ],
        }

    def timeline(self) -> list[Json]:
        found = []
        for offset, kind, subject, written_ms in self.control.told:
            if offset < self.no or (kind == "deletion_requested" and offset != self.no):
                continue
            if kind != "audit_nonce" or subject == f"request {self.no}":
                found.append({"offset": offset, "kind": kind, "subject": subject, "written_ms": written_ms})
        return found[:500]

    def attestations(self, holders: list[Json]) -> list[Json]:
        """Whose word ended what these holders owe: exits that a discharge names, and destructions of stores."""
        named = {int(at) for one in holders for at in re.findall(r"kv\.control/(\d+)", one["discharge"])}
        stores = {one["durable_id"] for one in holders if one["discharge"] == "destroyed"}
        shreds = {
            one["durable_id"] for one in holders if one["discharge"].startswith("key destroyed in rings ")
        }
        names = {
            (store, None if domain is None else store_alias_of(self.keys[domain], store))
            for store in shreds
            for domain in (None, *(self.domains & self.keys.keys()))
        }
        keys = {key for _, store, alias, key in self.control.ciphers if (store, alias) in names}
        found = []
        for offset, header, body in self.control.words:
            subject, attester = body.get("durable_id"), None
            if body["kind"] == "key_destroyed":
                subject = f"{body['key'].hex()} in {body['ring']}"
            if body["kind"] == "exit_attested":
                subject, attester = f"{body['worker']} {body['engine_life']}", body["attester"]
            exit_ = body["kind"] == "exit_attested" and offset in named
            key = body["kind"] == "key_destroyed" and body["key"] in keys
            if exit_ or key or (body["kind"] == "holder_destroyed" and body["durable_id"] in stores):
                found.append(
                    {
                        "offset": offset, "kind": body["kind"], "subject": subject, "attester": attester,
                        "evidence": body["evidence"], "signer": header["signer"], "written_ms": header["written_ms"],
                    }
                )  # fmt: skip
        return found

    def holds(self) -> list[Json]:
        """Legal holds on something in scope that stand, or were released behind the request."""
        standing: dict[str, Json] = {}
        over: list[Json] = []
        for offset, header, body in self.control.words:
            who = header["key_scope"] or header["signer"]
            if body["kind"] == "hold_set" and self.holds_here(body):
                standing[body["hold"]] = {
                    "offset": offset, "hold": body["hold"], "domain": body["domain"], "tenant": body["tenant"],
                    "reason": body["reason"], "placed_by": who, "signer": header["signer"],
                    "written_ms": header["written_ms"], "released_at": None, "released_by": None, "released_ms": None,
                }  # fmt: skip
            elif body["kind"] == "hold_released" and body["hold"] in standing:
                ended = standing.pop(body["hold"])
                told = {"released_at": offset, "released_by": who, "released_ms": header["written_ms"]}
                over += [{**ended, **told}] if offset > self.no else []
        return sorted([*standing.values(), *over], key=lambda one: int(one["offset"]))

    def holds_here(self, hold: Json) -> bool:
        owners = self.control.domains
        mine = self.scope["type"] == "tenant" and hold["tenant"] == self.scope["tenant"]
        return mine or any(
            hold["domain"] == one if hold["tenant"] is None else owners.get(one) == hold["tenant"]
            for one in self.domains
        )


HOLDER_FACTS = (
    "worker", "rank", "epoch", "engine_life", "epoch_no", "holder", "tier", "durable_id", "inventory", "discharge",
    "ack_seq", "ack_offset", "installed", "nonce", "old_left", "removed", "read_to", "held", "checksum", "stated",
)  # fmt: skip


TRANSFER_FACTS = ("worker", "rank", "epoch", "transfer", "holder", "blocks", "state", "seq")


def said_of(event: Json, listed: str) -> str | None:
    """The holder of which an event says that it holds something; a commit, an ack that leaves some and a
    refusal because they are in use name none (""). `listed` is the range's."""
    kind = event["type"]
    if kind in ("block_stored", "transfer_started") and event["ids"]:
        return str(event["holder"])
    if kind == "transfer_committed":
        return ""
    if kind == "ack" and any(one["old_left"] for one in event["requests"]):
        return ""
    if kind == "refused" and event["reason"] == "blocks_in_use":
        return ""
    if kind == "tier_changed" and event["ids"]:
        return str(event["to_holder"])
    if kind == "snapshot_part" and any(run["ids"] for run in event["runs"]):
        return listed
    if kind == "statement" and event["source"] == "pool" and event["count"]:
        return str(event["holder"])
    return None


def path(epoch: Json) -> str:
    return "/".join(str(one) for one in epoch["stream"])


def shown(blocks: list[bytes]) -> tuple[int, tuple[str, ...]]:
    return len(blocks), tuple(block.hex() for block in blocks[:8])


def read_header(raw: bytes) -> tuple[Json | None, tuple[Any, ...] | None]:
    """A record's header; if it is none, the stream and number that it still names, if any."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None, None
    if type(document) is not dict:
        return None, None
    try:
        head: Json = HEADER(document)
        aliases = [ref["alias"] for ref in head["parts"]]
        need(aliases[0] is None and None not in aliases[1:] and len(set(aliases)) == len(aliases))
        return head, None
    except ValueError:
        pass
    worker, rank, epoch, seq = (document.get(name) for name in ("worker", "rank", "epoch", "seq"))
    if not worker or type(worker) is not str or type(rank) is not int or not epoch or type(epoch) is not str:
        return None, None
    if type(seq) is int and 0 <= seq < 1 << 62:
        return None, (worker, rank, epoch, seq)
    return None, None


# ---------------------------------------------------------------- the checkpoint


def record_leaf(offset: int, head: bytes, rest: bytes, signature: bytes) -> bytes:
    return sha(b"\x00" + offset.to_bytes(8, "big") + head + rest + signature)


def tree_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, level by level: the last of an odd number moves up as it is."""
    level = leaves or [sha(b"")]
    while len(level) > 1:
        pairs = [sha(b"\x01" + level[at] + level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


def main_root(shown_: dict[int, bytes], low: int, high: int, hashes: Iterator[bytes]) -> bytes:
    """Root of leaves low to high from the shown ones and, for what holds none of them, the hashes in order."""
    inside = {at: leaf for at, leaf in shown_.items() if low <= at < high}
    if not inside:
        return next(hashes)
    if high - low == 1:
        return inside[low]
    half = 1 << (high - low - 1).bit_length() - 1
    left = main_root(inside, low, low + half, hashes)
    return sha(b"\x01" + left + main_root(inside, low + half, high, hashes))


def note_signatures(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """A signed note's text, and (name, signature bytes) of its lines."""
    if any(sign < " " and sign != "\n" for sign in note):
        raise Invalid("the checkpoint holds control characters")
    body, gap, lines = note.rpartition("\n\n")
    need(bool(gap) and lines.endswith("\n"))
    found = []
    for line in lines[:-1].split("\n"):
        dash, name, raw = line.split(" ")
        need(dash == "\N{EM DASH}" and name != "" and "+" not in name)
        packed_ = base64.b64decode(raw, validate=True)
        need(base64.b64encode(packed_).decode() == raw and len(packed_) > 4)
        found.append((name, packed_))
    return body + "\n", found


def note_holds(note: str, name: str, key: bytes, kind: int) -> bool:
    """Whether the key signed (kind 1) or cosigned (kind 4) the note; none of its lines may fail."""
    body, lines = note_signatures(note)
    hint = sha(name.encode() + b"\n" + bytes([kind]) + key)[:4]
    mine = [raw[4:] for given, raw in lines if given == name and raw[:4] == hint]
    if kind == 1:
        return bool(mine) and all(signed_by(key, raw, body.encode()) for raw in mine)
    for raw in mine:
        if len(raw) != 72 or raw[0] & 0x80:
            return False
        told = f"cosignature/v1\ntime {int.from_bytes(raw[:8], 'big')}\n"
        if not signed_by(key, raw[8:], (told + body).encode()):
            return False
    return bool(mine)


def cosigned_at(note: str, name: str, key: bytes) -> int | None:
    if not note_holds(note, name, key, 4):
        return None
    hint = sha(name.encode() + b"\n\x04" + key)[:4]
    mine = [raw for given, raw in note_signatures(note)[1] if given == name and raw[:4] == hint]
    return max(int.from_bytes(raw[4:12], "big") for raw in mine)


def witness_key(vkey: str) -> tuple[str, bytes]:
    name, hint, raw = vkey.split("+", 2)
    material = base64.b64decode(raw, validate=True)
    need(len(material) == 33 and material[0] == 4 and sha(name.encode() + b"\n" + material)[:4].hex() == hint)
    return name, material[1:]


def check_anchor(
    control: Control, lines: list[Json], starts: dict[int, int], ends: dict[tuple[str, int], int]
) -> Json:
    """How the records shown fit the checkpoint, if there is one."""
    stated = [line for line in lines if line["t"] == "anchor"]
    segments = {int(line["i"]): segment(line) for line in lines if line["t"] == "segment"}
    if not stated and not segments:
        return {"line": "anchoring: none", "problems": [], "witnessed": 0, "quorum": 0, "checkpoint": None}
    (anchor,) = stated
    need(len(segments) == sum(line["t"] == "segment" for line in lines) and bool(segments))
    note = str(anchor["note"])
    body, _ = note_signatures(note)
    origin, size, packed_, *_ = body.split("\n")
    name = "kvledger.audit/" + control.log.replace("+", "%2B")
    need(origin == name and re.fullmatch("0|[1-9][0-9]{0,18}", size) is not None)
    auditors = [
        key["key"] for key in control.keys.values() if "auditor" in key["roles"] and not key["revoked"]
    ]
    if not any(note_holds(note, name, key, 1) for key in auditors):
        raise Invalid("no auditor of this log has signed the checkpoint")
    leaves = {at: segment_leaf(one) for at, one in segments.items()}
    hashes = iter([bytes.fromhex(one) for one in anchor["hashes"]])
    need(max(leaves) < int(size) and min(leaves) >= 0)
    if main_root(leaves, 0, int(size), hashes) != base64.b64decode(packed_) or next(hashes, None) is not None:
        raise Invalid("the segments are not those of the checkpoint")
    problems = [str(one) for one in anchor["said"]]
    uncovered: list[str] = []
    unsealed: list[str] = []
    records: dict[tuple[str, int], list[tuple[int, bytes]]] = defaultdict(list)
    records["kv.control", 0] = control.leaves
    for line in lines:
        if line["t"] in ("event", "unreadable", "stranger", "leaf"):
            records["kv.events", int(line["p"])].append((int(line["o"]), event_leaf(line)))
    by_partition: dict[tuple[str, int], list[Json]] = defaultdict(list)
    for at in sorted(segments):
        by_partition[segments[at]["topic"], segments[at]["partition"]].append(segments[at])
    for where in sorted(set(ends) | set(by_partition)):
        start = (control.start or 0) if where[0] == "kv.control" else starts.get(where[1], 0)
        found = fit(where, by_partition[where], records[where], start, ends.get(where, 0))
        problems += found[0]
        uncovered += found[1]
        unsealed += found[2]
    keys = [witness_key(str(one)) for one in anchor["witnesses"]]
    quorum = int(anchor["quorum"])
    need(len({key for _, key in keys}) == len(keys) and 0 <= quorum <= len(keys))
    covered = not uncovered and not unsealed and not problems
    witnessed = sum(covered and note_holds(note, given, key, 4) for given, key in keys)
    told = f"anchoring: witnessed {witnessed} of {len(keys)}" if keys else "anchoring: checkpoint"
    if uncovered or unsealed:
        told = f"anchoring: none ({(uncovered + unsealed)[0]})"
    if problems:
        told = "anchoring: none (the log contradicts its checkpoint)"
    checkpoint = {
        "origin": origin,
        "size": int(size),
        "root": base64.b64decode(packed_).hex(),
        "quorum": quorum,
        "witnesses": [
            {"key": str(listed), "cosigned_s": cosigned_at(note, given, key)}
            for listed, (given, key) in zip(anchor["witnesses"], keys, strict=True)
        ],
    }
    return {
        "line": told,
        "problems": problems,
        "witnessed": witnessed,
        "quorum": quorum,
        "checkpoint": checkpoint,
    }


def fit(
    where: tuple[str, int], segments: list[Json], records: list[tuple[int, bytes]], start: int, end: int
) -> tuple[list[str], list[str], list[str]]:
    """One partition's records against its segments: what contradicts, what no seal covers, what isn't sealed yet."""
    name = f"{where[0]}/{where[1]}"
    problems: list[str] = []
    uncovered: list[str] = []
    reached = start
    for one in segments:
        low, high = one["first"], one["next"]
        if low > reached:
            uncovered.append(f"{name} from {reached} to {low}: in no segment")
        reached = max(reached, high)
        if high > end:
            problems.append(name)
            break
        if low >= start:
            leaves = [leaf for offset, leaf in records if low <= offset < high]
            if (len(leaves), tree_root(leaves)) != (one["records"], one["root"]):
                problems.append(name)
        elif high > start:
            uncovered.append(f"{name} from {start} to {high}: its segment's start is gone")
    behind = max(segments[-1]["next"] if segments else start, start)
    return problems, uncovered, [f"{name} from {behind}: not sealed yet"] if end > behind else []


def segment(line: Json) -> Json:
    return dict(SEGMENT({name: one for name, one in line.items() if name not in ("t", "i")}))


def segment_leaf(one: Json) -> bytes:
    fields = (one["topic"], one["partition"], one["first"], one["next"], one["records"], one["root"].hex())
    return sha(b"\x00" + "".join(f"{field}\n" for field in ("kvledger segment v1", *fields)).encode())


def event_leaf(line: Json) -> bytes:
    if line["t"] != "event":
        return bytes.fromhex(line["l"])
    head, parts = str(line["h"]).encode(), line["b"]
    if len(parts) < len(json.loads(head)["parts"]):
        rest = bytes.fromhex(line["r"])
    else:
        rest = sha(b"\n".join(str(parts[str(at)]).encode() for at in range(len(parts))))
    return record_leaf(int(line["o"]), sha(head), rest, sha(unbase64(line["s"]) or b""))


# ---------------------------------------------------------------- a report


class Register(Control):
    """kv.control as a report shows it: every record by its header at least, requests of the range whole."""

    def __init__(self, first: int, behind: int) -> None:
        super().__init__()
        self.first, self.behind = first, behind

    def take(self, line: Json) -> None:
        offset, signature = int(line["o"]), unbase64(line["s"])
        if self.start is not None and offset < self.end:
            raise Invalid("the control records are out of order")
        if "v" in line:
            self._read(offset, base64.b64decode(line["v"], validate=True), signature)
        elif "b" in line:
            self._read(offset, f"{line['h']}\n{line['b']}".encode(), signature)
        else:
            head = str(line["h"]).encode()
            header = CONTROL_HEADER(json.loads(head))
            asks = header["kind"] == "deletion_requested" and self.first <= offset < self.behind
            if asks or header["kind"] in ("genesis", "granted", "revoked"):
                raise Invalid(f"the body of record {offset} is left out")
            self._step(offset, sha(head), header["body_sha256"], sha(signature or b""))
            self._obey(offset, header, head, signature, None, b"")


def verify_report(
    statement: Json,
    lines: list[Json],
    body: bytes,
    signer: str,
    trusted: bytes,
    signed: bytes,
    signature: bytes,
) -> str:
    """The worst verdict that a report states of any request, if it holds."""
    stated, form = statement["predicate"], lines[0]
    need(form["t"] == "format" and form["version"] == 1)
    first, behind = int(form["first"]), int(form["next"])
    control = Register(first, behind)
    for line in lines:
        if line["t"] == "control":
            control.take(line)
        need(line["t"] in ("format", "anchor", "segment", "control", "verdict"), "an unknown kind of line")
    last = control.end
    control.reach(stated["control_end"])
    if not signed_by(auditor_key(control, signer, trusted), signature, signed):
        raise Invalid("the envelope is not signed by this key")
    digests = [one["digest"]["sha256"] for one in statement["subject"]]
    if digests[1] != sha(body) or digests[0] != control.hash or not 0 <= first <= behind <= control.end:
        raise Invalid("the evidence is not the one that was signed")
    given = [read_verdict(line, control) for line in lines if line["t"] == "verdict"]
    need([one["offset"] for one in given] == sorted({one["offset"] for one in given}))
    need(all(one["offset"] < stated["audit_end"] for one in given))
    numbers = sorted(number for number in control.requests if first <= number < behind)
    entries = [report_entry(control.requests[number], given, stated["made_ms"]) for number in numbers]
    used = [one[name] for one in entries for name in ("newest", "first_proven") if one[name] is not None]
    need(
        {one["offset"] for one in used} == {one["offset"] for one in given}, "a verdict that no request needs"
    )
    counts: dict[str, int] = defaultdict(int)
    for entry in entries:
        counts["NOT JUDGED" if entry["newest"] is None else entry["newest"]["verdict"]] += 1
    starts = [(0, control.start - 1)] if control.start else []
    shown_offsets = [offset for offset, _ in control.leaves]
    holes = [(a + 1, b - 1) for a, b in pairwise(shown_offsets) if b > a + 1]
    holes += [(last, control.end - 1)] * (control.end > last)
    anchored = check_anchor(control, lines, {}, {("kv.control", 0): control.end})
    checkpoint = stated["checkpoint"]
    if checkpoint is not None:
        checkpoint = {name: value for name, value in checkpoint.items() if name != "stamp"}
    for name, here, said in (
        ("claim", REPORT_CLAIM, stated["claim"]),
        ("not_claimed", list(REPORT_NOT_CLAIMED), stated["not_claimed"]),
        ("log", control.log, stated["log"]),
        ("range", [first, behind], [stated["first"], stated["next"]]),
        ("register", [control.end, control.hash.hex()], [stated["control_end"], stated["control_hash"]]),
        ("gaps", [list(one) for one in starts + holes], stated["gaps"]),
        ("entries", entries, stated["entries"]),
        ("counts", dict(counts), stated["counts"]),
        ("late", sum(entry["late"] for entry in entries), stated["late"]),
        (
            "not_obeyed",
            sorted(offset for offset in control.passed if first <= offset < behind),
            [one["offset"] for one in stated["not_obeyed"]],
        ),
        ("anchoring", anchored["line"], stated["anchoring"]),
        ("checkpoint", anchored["checkpoint"], checkpoint),
    ):
        if here != said:
            raise Invalid(f"the register gives something else than the report says ({name})")
    if counts["REFUTED"]:
        return "REFUTED"
    if counts["PENDING"] or counts["NOT JUDGED"]:
        return "PENDING"
    faults = starts or holes or anchored["problems"]
    return "UNPROVABLE" if counts["UNPROVABLE"] or faults else "PROVEN"


def read_verdict(line: Json, control: Control) -> Json:
    """A verdict as kv.audit holds it, under an auditor's checked signature."""
    record = AUDIT_RECORD(line["v"])
    raw = base64.b64decode(record["statement"], validate=True)
    key = control.keys.get(record["signer"])
    if key is None or "auditor" not in key["roles"] or not signed_by(key["key"], record["signature"], raw):
        raise Invalid("a verdict is not signed by an auditor of this log")
    told = VERDICT_GIVEN(json.loads(raw))
    need(told["log"] == control.log)
    ends = {(one["topic"], one["partition"]): one["offset"] for one in told["frontier"]}
    bundle = told["bundle_sha256"]
    return {
        "request": told["request"],
        "offset": COUNT(line["o"]),
        "verdict": told["verdict"],
        "signer": record["signer"],
        "control": ends.get(("kv.control", 0), 0),
        "given_ms": told["given_ms"],
        "bundle_sha256": None if bundle is None else bundle.hex(),
    }


def report_entry(request: Json, given: list[Json], made_ms: int) -> Json:
    mine = [
        {name: value for name, value in one.items() if name != "request"}
        for one in given
        if one["request"] == request["number"]
    ]
    proven = [one for one in mine if one["verdict"] == "PROVEN"]
    proof_ms = proven[0]["given_ms"] - request["written_ms"] if proven else None
    waited_ms = made_ms - request["written_ms"] if proof_ms is None else proof_ms
    scope = {
        name: value.hex()
        if isinstance(value, bytes)
        else base64.b64encode(b"".join(value)).decode()
        if isinstance(value, tuple)
        else value
        for name, value in request["scope"].items()
    }
    return {
        "request": request["number"],
        "record_sha256": request["sha256"].hex(),
        "scope": scope,
        **{name: request[name] for name in ("requester", "reason", "key_scope", "written_ms", "deadline_s")},
        "newest": mine[-1] if mine else None,
        "first_proven": proven[0] if proven else None,
        "proof_ms": proof_ms,
        "late": request["deadline_s"] is not None and waited_ms > request["deadline_s"] * 1_000,
    }


# ---------------------------------------------------------------- the bundle


def verify(raw: bytes, trusted: bytes) -> str:
    """The verdict of a bundle that holds under the operator's or the auditor's key. Raises Invalid."""
    try:
        return _verify(raw, trusted)
    except Invalid:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise Invalid(f"the bundle is garbled ({type(error).__name__})") from error
    except StopIteration as error:
        raise Invalid("a hash is missing") from error


def _verify(raw: bytes, trusted: bytes) -> str:
    first, newline, body = raw.partition(b"\n")
    need(newline == b"\n")
    envelope = ENVELOPE(json.loads(first))
    payload = base64.b64decode(envelope["payload"], validate=True)
    signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
    signer = envelope["signatures"][0]["keyid"]
    kind = envelope["payloadType"].encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    document = json.loads(payload)
    json.dumps(document, ensure_ascii=False).encode()  # half a character is none
    is_report = document["predicateType"] == REPORT_TYPE
    lines = read_lines(body, REPORT_LINES if is_report else BUNDLE_LINES)
    if is_report:
        return verify_report(REPORT_STATEMENT(document), lines, body, signer, trusted, signed, signature)
    control = Control()
    for line in lines:
        if line["t"] == "control":
            control.take(line)
    if not signed_by(auditor_key(control, signer, trusted), signature, signed):
        raise Invalid("the envelope is not signed by this key")
    statement = STATEMENT(document)
    stated = statement["predicate"]["verdict"]
    if statement["subject"][1]["digest"]["sha256"] != sha(body):
        raise Invalid("the evidence is not the one that was signed")
    request = control.requests.get(stated["request"])
    if request is None or request["sha256"] != statement["subject"][0]["digest"]["sha256"]:
        raise Invalid("the evidence holds no such request")
    if control.log != statement["predicate"]["log"] or control.hash.hex() != stated["control_hash"]:
        raise Invalid("the evidence is of another control log")
    ends = {(one["topic"], one["partition"]): one["offset"] for one in stated["frontier"]}
    control.reach(ends.get(("kv.control", 0), 0))
    if ends.get(("kv.control", 0)) != control.end:
        raise Invalid("the control records don't reach the frontier")
    form = lines[0]
    if form["t"] != "format" or form["version"] != 1 or form["request"] != stated["request"]:
        raise Invalid("the evidence has an unknown format")
    starts = {int(p): int(offset) for p, offset in form["starts"].items()}
    keys = {str(line["domain"]): bytes.fromhex(line["alias_key"]) for line in lines if line["t"] == "key"}
    trial = Trial(control, request, keys, starts)
    for line in lines:
        if line["t"] == "bound":
            trial.bound = (trial.bound or set()) | set(packed(line["ids"]))
        if line["t"] == "subjects":
            trial.cut += line["cut"]
            trial.missing += line["missing"]
    last: dict[int, int] = {}
    for line in lines:
        if line["t"] in ("format", "key", "bound", "subjects", "control", "anchor", "segment"):
            continue
        partition, offset = int(line["p"]), int(line["o"])
        if offset <= last.get(partition, -1) or offset >= ends.get(("kv.events", partition), 0):
            raise Invalid("an event record is out of order or behind the frontier")
        last[partition] = offset
        trial.feed(line)
    anchored = check_anchor(control, lines, starts, ends)
    found = trial.judge(anchored)
    compare(found, stated, trial)
    compare_frame(statement["predicate"], anchored, trial)
    return str(found["kind"])


def auditor_key(control: Control, signer: str, trusted: bytes) -> bytes:
    key = control.keys.get(signer)
    if trusted == control.operator:
        if key is None or "auditor" not in key["roles"] or key["revoked"]:
            raise Invalid("the operator granted the signer no auditor's role")
        return bytes(key["key"])
    if key_id(trusted) != signer or (control.log and (key is None or "auditor" not in key["roles"])):
        raise Invalid("the bundle belongs to another log or was signed by another key")
    return trusted


def counterexample(one: Json) -> tuple[Any, ...]:
    where = (
        one["worker"],
        one["rank"],
        one["epoch"],
        one["seq"],
        one["partition"],
        one["offset"],
        one["holder"],
    )
    return (*where, one["event"], one["admitted_after"], one["count"], tuple(one["ids"]))


HONESTY = "workers tell the truth in what they sign"
VERDICT_FACTS = {
    "kind", "request", "scope", "requester", "domains", "frontier", "control_hash", "closing_nonce", "conditions",
    "reasons", "counterexamples", "holders", "removed", "cleared", "died", "evicted", "rejected", "recreated",
    "transfers", "transfers_in_all", "records_ignored", "assumptions",
}  # fmt: skip


def compare(found: Json, stated: Json, trial: Trial) -> None:
    """That the statement says what came out here."""
    said = {
        "kind": stated["kind"],
        "conditions": stated["conditions"],
        "reasons": {(one["condition"], one["reason"], one["subject"], one["waits"]) for one in stated["reasons"]},
        "counter": sorted((counterexample(one) for one in stated["counterexamples"]), key=repr),
        "recreated": stated["recreated"],
        **{name: stated[name] for name in ("removed", "cleared", "died", "evicted", "rejected")},
        "transfers": [tuple(one[name] for name in TRANSFER_FACTS) for one in stated["transfers"]],
        "nonce": stated["closing_nonce"],
        "holders": sorted((tuple(one[name] for name in HOLDER_FACTS) for one in stated["holders"]), key=repr),
    }  # fmt: skip
    need(stated.keys() == VERDICT_FACTS)
    where = {"worker", "rank", "epoch", "seq", "partition", "offset", "holder"}
    for name, facts in (
        ("holders", set(HOLDER_FACTS)),
        ("transfers", set(TRANSFER_FACTS)),
        ("counterexamples", where | {"what", "event", "admitted_after", "count", "ids"}),
        ("reasons", {"reason", "condition", "subject", "detail", "cure", "waits"}),
    ):
        need(all(one.keys() == facts for one in stated[name]), "unknown field")
    for name in ("records_ignored", "assumptions"):
        need(all(type(one) is str for one in stated[name]))
    need(stated["requester"] == trial.request["requester"])
    need(stated["transfers_in_all"] == len(found["transfers"]))
    found["transfers"] = found["transfers"][:200]
    for name, value in said.items():
        if found[name] != value:
            raise Invalid(f"the evidence gives {found['kind']}; the statement says otherwise ({name})")
    stores = [
        f"{store} encrypts as declared; its keys were never anywhere but in rings {rings}"
        for store, rings in trial.shredded.items()
    ]
    for assumed in (found["anchoring"], trial.membership_told, HONESTY, *stores, *trial.gone):
        if assumed and assumed not in stated["assumptions"]:
            raise Invalid(f"the evidence gives «{assumed}», which the statement doesn't say")
    if SCOPE(stated["scope"]) != trial.scope or set(stated["domains"]) != trial.domains:
        raise Invalid("the statement is about another scope")


def compare_frame(stated: Json, anchored: Json, trial: Trial) -> None:
    """What the statement says around the verdict. The time stamp of the checkpoint is not looked at here."""
    checkpoint = stated["checkpoint"]
    if checkpoint is not None:
        checkpoint = {name: value for name, value in checkpoint.items() if name != "stamp"}
    request = {
        "record_sha256": trial.request["sha256"].hex(),
        **{name: trial.request[name] for name in ("reason", "key_scope", "written_ms", "deadline_s")},
    }
    for name, here, said in (
        ("request", request, stated["request"]),
        ("membership", trial.membership(), stated["membership"]),
        ("checkpoint", anchored["checkpoint"], checkpoint),
        ("timeline", trial.timeline(), stated["timeline"]),
        ("attestations", trial.attestations(stated["verdict"]["holders"]), stated["attestations"]),
        ("holds", trial.holds(), stated["holds"]),
        ("anchoring", anchored["line"], stated["anchoring"]),
        ("not_claimed", NOT_CLAIMED, stated["not_claimed"]),
    ):
        older = name in ("attestations", "holds") and said is None
        if here != said and not older:
            raise Invalid(f"the evidence gives something else than the statement says ({name})")


class Usage(Exception):
    """Nothing was verified: the arguments name no file that can be read, or no key."""


def asked(arguments: list[str]) -> tuple[bytes, bytes]:
    """The file's bytes and the key that is trusted."""
    if len(arguments) != 2:
        raise Usage("give the bundle or report, and the operator's or the auditor's public key")
    path, text = arguments
    if re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
        try:
            with open(text, encoding="ascii") as file:
                text = file.read(4_096).strip()
        except (OSError, ValueError) as error:
            raise Usage("KEY is neither 64 hexadecimal characters nor a file that holds them") from error
        if re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
            raise Usage("the file KEY does not hold 64 hexadecimal characters: is it the public key?")
    try:
        with open(path, "rb") as file_:
            return file_.read(), bytes.fromhex(text)
    except OSError as error:
        raise Usage(f"{path} can't be read: {error.strerror}") from error


def main(arguments: list[str]) -> int:
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(f"{__doc__}")
        return 0
    try:
        raw, key = asked(arguments)
    except Usage as error:
        sys.stderr.write(f"usage: verify_bundle.py FILE KEY; {error}\n")
        return USAGE
    try:
        kind = verify(raw, key)
    except (ValueError, Invalid) as error:
        sys.stderr.write(f"invalid, it proves nothing: {error}\n")
        return INVALID
    sys.stdout.write(f"{kind}\n")
    return EXIT[kind]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
