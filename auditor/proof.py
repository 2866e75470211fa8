"""The signed statement of a verdict: DSSE envelope, in-toto Statement v1, our own predicate.

https://github.com/secure-systems-lab/dsse (protocol 1.0.2), https://in-toto.io/Statement/v1.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final, Literal

from pydantic import Field, ValidationError

from auditor.finding import Verdict
from events.codec import dump
from events.errors import KvledgerError
from events.model.field import Count, Hex32, Record
from events.signing import Signer, verify

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:kvledger:predicate:deletion-verdict:v1"

CLAIM = (
    "No registered holder has a copy left of what the request covers that was made before the request was written, "
    "as of the frontier (the positions up to which the log was read for this verdict) and under the assumptions "
    "listed. What is not PROVEN is not claimed."
)
CLAIMS = (
    CLAIM,
    "As of the frontier, no copy in scope that was admitted before the request existed on any registered "
    "holder, under the assumptions listed; what is not PROVEN is not claimed.",
)
"""The claim, in this wording and in every earlier one; they mean the same."""
NOT_CLAIMED = (
    "physical erasure of memory cells",
    "honesty of a worker that lies in signed statements",
    "copies outside the registered holders: encoder caches, draft models, unregistered stores",
    "bodies withheld from this bundle concern other tenants by the auditor's word",
    "records shown by digests alone can't be read or are of no registered stream by the auditor's word",
)


class BundleError(KvledgerError):
    """A bundle that proves nothing: garbled, cut, edited, foreign, or signed by another key."""


class Digest(Record):
    sha256: Hex32


class Subject(Record):
    name: str
    digest: Digest


class RequestStated(Record):
    """The request's record: who asked for what is in the verdict. `written_ms` is its writer's clock."""

    record_sha256: Hex32
    reason: str
    key_scope: str | None
    written_ms: int
    deadline_s: int | None


class KeyStated(Record):
    """A signing key by its id; `revoked_at` is the offset of its revocation."""

    key: str
    roles: tuple[str, ...]
    revoked_at: int | None


class Membership(Record):
    """Whose word it is who belongs to the fleet (`basis`), and who does: engine lives and their streams, kvledger's
    own canaries, streams that nobody registered, and the keys that may sign."""

    basis: str
    operator: str
    lives: int
    streams: int
    canaries: tuple[str, ...]
    strangers: tuple[str, ...]
    keys: tuple[KeyStated, ...]


class WitnessStated(Record):
    """A listed witness, and when it says it cosigned; None if it didn't."""

    key: str
    cosigned_s: int | None


class StampStated(Record):
    """An RFC 3161 time stamp of the checkpoint's text, as the auditor read it. Whoever has the authority's
    certificate checks it (`audit verify --tsa`)."""

    authority: str
    time: str
    policy: str


class CheckpointStated(Record):
    """The C2SP checkpoint that binds the log; `root` is that of the main log with `size` leaves."""

    origin: str
    size: int
    root: Hex32
    quorum: int
    witnesses: tuple[WitnessStated, ...]
    stamp: StampStated | None = None


class Moment(Record):
    """A record of `kv.control` that the request met; `written_ms` is its writer's wall clock, for people only."""

    offset: int
    kind: str
    subject: str
    written_ms: int


class AttestationStated(Record):
    """A record that ends what a holder owes: `kind` is "exit_attested" (of `subject`, "WORKER LIFE"),
    "holder_destroyed" (of a store) or "key_destroyed" ("KEY in RING"). `attester` is who says it, by the record;
    `signer` the id of the key that signed it; `evidence` what is offered for it."""

    offset: int
    kind: str
    subject: str
    attester: str | None
    evidence: str
    signer: str
    written_ms: int


class HoldStated(Record):
    """A legal hold on something in scope that stands at the frontier, or was released behind the request
    (`released_at`). `placed_by` and `released_by` are principals, or the keys that signed where none is named."""

    offset: int
    hold: str
    domain: str | None
    tenant: str | None
    reason: str
    placed_by: str
    signer: str
    written_ms: int
    released_at: int | None
    released_by: str | None
    released_ms: int | None


class Predicate(Record):
    """What the auditor claims, and what he doesn't. Whoever verifies recomputes all of it but `verifier`, the
    program that made it, `given_ms`, the auditor's clock at the verdict, and the checkpoint's time stamp. What
    older programs left out is None: `given_ms`, `attestations` (those that a holder's discharge rests on) and
    `holds`."""

    version: Literal[1] = 1
    log: str
    claim: str
    not_claimed: tuple[str, ...]
    request: RequestStated
    verdict: Verdict
    membership: Membership
    anchoring: str
    checkpoint: CheckpointStated | None
    timeline: tuple[Moment, ...]
    verifier: str
    given_ms: Count | None = None
    attestations: tuple[AttestationStated, ...] | None = None
    holds: tuple[HoldStated, ...] | None = None


class Statement(Record):
    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, Subject]
    predicateType: Literal["urn:kvledger:predicate:deletion-verdict:v1"]
    predicate: Predicate


class Signature(Record):
    keyid: str
    sig: str


class Envelope(Record):
    payloadType: Literal["application/vnd.in-toto+json"] = PAYLOAD_TYPE
    payload: str
    signatures: tuple[Signature]


def pae(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding of an in-toto payload."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def make_statement(predicate: Predicate, evidence_sha256: bytes) -> bytes:
    """The payload: the predicate bound to the request's record and to the evidence's bytes."""
    name = f"{predicate.log} request {predicate.verdict.request}"
    statement = Statement(
        _type=STATEMENT_TYPE,
        predicateType=PREDICATE_TYPE,
        subject=(
            Subject(name=name, digest=Digest(sha256=predicate.request.record_sha256)),
            Subject(name="evidence", digest=Digest(sha256=evidence_sha256)),
        ),
        predicate=predicate,
    )
    return statement.model_dump_json(by_alias=True).encode()


def seal(payload: bytes, signer: Signer) -> bytes:
    """The envelope as one line of JSON."""
    signature = base64.b64encode(signer.sign(pae(payload))).decode()
    envelope = Envelope(
        payload=base64.b64encode(payload).decode(), signatures=(Signature(keyid=signer.id, sig=signature),)
    )
    return dump(envelope)


def unseal(line: bytes) -> tuple[str, bytes, bytes]:
    """(key id, payload, signature) of an envelope, nothing checked. Raises BundleError."""
    try:
        envelope = Envelope.model_validate_json(line)
        payload = base64.b64decode(envelope.payload, validate=True)
        signature = base64.b64decode(envelope.signatures[0].sig, validate=True)
    except (ValidationError, binascii.Error, ValueError) as error:
        raise BundleError("the first line is no DSSE envelope") from error
    return envelope.signatures[0].keyid, payload, signature


def open_statement(payload: bytes, signature: bytes, public_key: bytes) -> Statement:
    """The statement under a checked signature. Raises BundleError."""
    if not verify(public_key, signature, pae(payload)):
        raise BundleError("the envelope is not signed by this key")
    return read_statement(payload)


def read_statement(payload: bytes) -> Statement:
    """The statement, its signature not looked at. Raises BundleError."""
    try:
        return Statement.model_validate_json(payload)
    except ValidationError as error:
        raise BundleError("the statement is not a deletion verdict of version 1") from error


def pretty(payload: bytes) -> str:
    """The statement for people."""
    return json.dumps(json.loads(payload), indent=1)
