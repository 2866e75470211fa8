"""What binds a verdict's log to something that can't be changed any more: its checkpoint, and who cosigned it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from auditor.checkpoint import KeyKind, Note, NoteError, NoteKey, parse_head, parse_key
from auditor.main_log import MainLog, origin
from auditor.segment import Partition, Settled, segment_leaf
from auditor.tree import Tree, subset_ranges, subset_root
from events.errors import KvledgerError
from events.model.audit import Segment


class PolicyError(KvledgerError):
    """A list of witnesses that can't be used; its owner mends it."""


@dataclass(frozen=True, slots=True)
class WitnessPolicy:
    """Whose cosignatures count, and how many of them are needed."""

    keys: tuple[NoteKey, ...] = ()
    quorum: int = 0

    def count(self, note: Note) -> int:
        """How many of the witnesses have cosigned; one key counts once, whatever its names."""
        return len({key.public_key for key in self.keys if note.signed_by(key)})


def make_policy(keys: Sequence[str], quorum: int) -> WitnessPolicy:
    """From vkeys. Raises PolicyError for keys that can't cosign, one given twice, or a quorum beyond them."""
    try:
        parsed = tuple(parse_key(key) for key in keys)
    except NoteError as error:
        raise PolicyError(f"a witness's key is wrong: {error}") from error
    for key in parsed:
        if key.kind is not KeyKind.COSIGNATURE:
            raise PolicyError(f"{key.name} is no witness's key: its kind is not 04")
    if len({key.public_key for key in parsed}) != len(parsed):
        raise PolicyError("a witness is listed twice")
    if not 0 <= quorum <= len(parsed):
        raise PolicyError(f"a quorum of {quorum} can't be had from {len(parsed)} witnesses")
    return WitnessPolicy(parsed, quorum)


@dataclass(frozen=True, slots=True)
class Anchoring:
    """As a verdict states it. `problems` say where the log contradicts its checkpoint; `gap` says why there is
    none for all that was read."""

    checkpoint: bool = False
    witnessed: int = 0
    witnesses: int = 0
    quorum: int = 0
    problems: tuple[str, ...] = ()
    gap: str = ""

    @property
    def line(self) -> str:
        if self.problems:
            return "anchoring: none (the log contradicts its checkpoint)"
        if not self.checkpoint:
            return f"anchoring: none ({self.gap})" if self.gap else "anchoring: none"
        if not self.witnesses:
            return "anchoring: checkpoint"
        return f"anchoring: witnessed {self.witnessed} of {self.witnesses}"


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a bundle carries of the main log: the checkpoint, the segments it shows by their leaf number, and the
    hashes that lead from them to the root. `said` are problems of `kv.audit` by the auditor's word, `stamp` is a
    TimeStampResp over the checkpoint's text (RFC 3161, DER) or nothing; `auditor.timestamp` checks it."""

    note: Note
    policy: WitnessPolicy
    segments: Mapping[int, Segment]
    hashes: tuple[bytes, ...]
    said: tuple[str, ...] = ()
    stamp: bytes = b""

    def holds(self, log: str) -> bool:
        """Whether the segments are leaves of the checkpoint's tree; its signature is the caller's to check."""
        head = parse_head(self.note.text)
        shown = {index: segment_leaf(segment) for index, segment in self.segments.items()}
        return head.origin == origin(log) and subset_root(shown, head.size, self.hashes) == head.root


def make_anchor(main: MainLog, note: Note, policy: WitnessPolicy, starts: Mapping[Partition, int]) -> Anchor:
    """Shows every segment that the log, which begins at `starts`, still holds a part of. `note` is the head's.
    Raises ValueError if there is none."""
    shown = {
        index: segment
        for index, segment in enumerate(main.segments)
        if segment.next > starts.get((segment.topic, segment.partition), 0)
    }
    if not shown:
        raise ValueError("the log holds nothing of any sealed segment")
    ranges = subset_ranges(sorted(shown), main.size)
    hashes = Tree(ranges).extend(main.leaves).proof(ranges)
    return Anchor(note, policy, shown, tuple(hashes), tuple(main.problems))


def appraise(anchor: Anchor, found: Settled) -> Anchoring:
    """What a checkpoint is worth for a log that was read whole. `found`: how the records fit its segments. Witnesses
    of a checkpoint that doesn't cover every record, or is contradicted, have seen another log: they don't count."""
    gaps = [*found.uncovered]
    gaps += [f"{one.topic}/{one.partition} from {one.first}: not sealed yet" for one in found.new]
    problems = (*anchor.said, *found.problems)
    return Anchoring(
        checkpoint=not gaps,
        witnessed=anchor.policy.count(anchor.note) if not gaps and not problems else 0,
        witnesses=len(anchor.policy.keys),
        quorum=anchor.policy.quorum,
        problems=problems,
        gap=gaps[0] if gaps else "",
    )
