"""What an audit has folded of kv.events so far, as bytes: so that the next one reads on from there.

A state belongs to one request of one log, one version of the rule, one key ring and one position, where a sealed
segment ends in every partition. It says to which head of the main log that position belongs; whoever uses it compares
that with the main log as it is, and the last record of each partition with the one that is there now. A state that
doesn't fit in any way is nothing: the log is read from its start.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from pydantic import ValidationError

from auditor.evidence import MOST_UNPLACED, Evidence
from auditor.registry import ControlFold
from auditor.seen import SeenHashes, Spill
from events.chain import sha256
from events.errors import KvledgerError
from events.model.field import Count, Hex32, Name, Offset, Record
from events.signing import Signer, Verify

MAGIC = b"kvledger audit state v1\n"
_BUILTINS = frozenset({"set", "frozenset", "bytearray"})


class FoldStateError(KvledgerError):
    """A state that can't be used; the caller reads the log from its start. `reason` says why, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the kept state is not used: {reason}")
        self.reason = reason


class LastRecord(Record):
    """Of one partition: the newest record that was folded, by its leaf hash; none if the partition was empty."""

    partition: Count
    end: Offset
    offset: Offset | None = None
    leaf: Hex32 | None = None


class StateHead(Record):
    """What a state belongs to."""

    log: Name
    request: Offset
    request_sha256: Hex32
    rule: Hex32
    keys: Hex32
    main_size: Count
    main_root: Hex32
    partitions: tuple[LastRecord, ...]
    spilled: Count
    payload: Hex32

    @property
    def ends(self) -> dict[int, int]:
        return {one.partition: one.end for one in self.partitions}


@dataclass(frozen=True, slots=True)
class Resumed:
    """Evidence as it stood at `head`'s position."""

    head: StateHead
    evidence: Evidence

    def needs(self, partition: int) -> int:
        """From where on the log must be read: the last record that was folded is looked at again."""
        found = next((one for one in self.head.partitions if one.partition == partition), None)
        if found is None:
            return 0
        return found.end if found.offset is None else found.offset


def rule_digest() -> bytes:
    """Of the code that a state depends on: another version of it folds from the start."""
    root = Path(__file__).parent
    known = hashlib.sha256(f"{sys.version_info} {pydantic.VERSION}".encode())
    for path in sorted([*root.glob("*.py"), *(root.parent / "events").rglob("*.py")]):
        known.update(path.name.encode() + b"\0" + sha256(path.read_bytes()))
    return known.digest()


def keys_digest(alias_keys: Mapping[str, bytes]) -> bytes:
    return sha256(json.dumps({name: key.hex() for name, key in sorted(alias_keys.items())}).encode())


def pack(
    evidence: Evidence,
    partitions: Iterable[LastRecord],
    main: tuple[int, bytes],
    spill: Spill | None,
    spilled: int,
    signer: Signer,
    rule: bytes,
) -> bytes | None:
    """The state of an evidence, signed by the auditor whose it is; None where one can't be kept: kv.control has a
    hole, or too many unreadable records are of streams that nobody has registered. `main` is the main log's size and
    root, `spilled` the length of `spill`."""
    registry, request = evidence.registry, evidence.request
    if not registry.contiguous or len(evidence.unplaced) >= MOST_UNPLACED:
        return None
    out = io.BytesIO()
    pickler = _Pickler(out, spill)
    pickler.dump(evidence.state())
    payload = out.getvalue()
    head = StateHead(
        log=registry.log,
        request=request.number,
        request_sha256=request.record_sha256,
        rule=rule,
        keys=keys_digest(evidence.scope.alias_keys),
        main_size=main[0],
        main_root=main[1],
        partitions=tuple(partitions),
        spilled=spilled,
        payload=sha256(payload),
    )
    line = head.model_dump_json(exclude_none=True).encode()
    return MAGIC + line + b"\n" + signer.sign(line).hex().encode() + b"\n" + payload


def unpack(
    raw: bytes,
    number: int,
    registry: ControlFold,
    alias_keys: Mapping[str, bytes],
    verify: Verify,
    public_key: bytes,
    roots: Mapping[int, bytes],
    spill: Spill | None,
    rule: bytes,
) -> Resumed:
    """The state of a request, if it is the auditor's own and belongs to this log as `registry` and `roots` (the main
    log's, by size) have it now. Raises FoldStateError."""
    head, payload = _open(raw, verify, public_key)
    request = registry.requests.get(number)
    if request is None or (head.request, head.request_sha256) != (number, request.record_sha256):
        raise FoldStateError("it is of another request")
    if head.log != registry.log or not registry.contiguous:
        raise FoldStateError("it is of another log")
    if (head.rule, head.keys) != (rule, keys_digest(alias_keys)):
        raise FoldStateError("it was made by another version, or with other domain keys")
    if roots.get(head.main_size) != head.main_root:
        raise FoldStateError("the main log has no such head")
    try:
        state = _Unpickler(io.BytesIO(payload), spill).load()
        evidence = Evidence(request, registry, alias_keys, verify, new_seen=lambda: SeenHashes(spill))
        evidence.resume(state)
    except Exception as error:  # a pickle raises anything
        raise FoldStateError(f"it can't be read ({type(error).__name__})") from error
    why = _outdated(evidence, registry)
    if why:
        raise FoldStateError(why)
    return Resumed(head, evidence)


def _outdated(evidence: Evidence, registry: ControlFold) -> str:
    """Why a log read from its start would be folded otherwise, as kv.control is now; "" if it would not."""
    if evidence.scope.stale():
        return "the domains in scope have changed"
    if any(stream in registry.epochs for stream in (*evidence.strangers, *evidence.unplaced)):
        return "a stream that was a stranger's has been registered"
    if any(registry.epochs.get(stream) != case.epoch for stream, case in evidence.streams.items()):
        return "a registration has changed"
    return ""


def _open(raw: bytes, verify: Verify, public_key: bytes) -> tuple[StateHead, bytes]:
    parts = raw.removeprefix(MAGIC).split(b"\n", 2)
    if not raw.startswith(MAGIC) or len(parts) != 3:
        raise FoldStateError("it is no state")
    line, signature, payload = parts
    try:
        head = StateHead.model_validate_json(line)
        signed = verify(public_key, bytes.fromhex(signature.decode()), line)
    except (ValidationError, ValueError) as error:
        raise FoldStateError("it is no state of this version") from error
    if not signed or sha256(payload) != head.payload:
        raise FoldStateError("it was changed, or another auditor made it")
    return head, payload


class _Pickler(pickle.Pickler):
    """The spill is named, not copied."""

    def __init__(self, file: io.BytesIO, spill: Spill | None) -> None:
        super().__init__(file, protocol=5)
        self._spill = spill

    def persistent_id(self, found: Any) -> str | None:
        return "spill" if self._spill is not None and found is self._spill else None


class _Unpickler(pickle.Unpickler):
    """Makes nothing but the auditor's and the log's own values, whoever wrote the bytes."""

    def __init__(self, file: io.BytesIO, spill: Spill | None) -> None:
        super().__init__(file)
        self._spill = spill

    def find_class(self, module: str, name: str) -> Any:
        ours = module.partition(".")[0] in ("auditor", "events") and "." not in name
        if not ours and (module != "builtins" or name not in _BUILTINS):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a state")
        found = super().find_class(module, name)
        if not isinstance(found, type):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a state")
        return found

    def persistent_load(self, name: Any) -> Any:
        if name != "spill":
            raise pickle.UnpicklingError("an unknown reference")
        return self._spill
