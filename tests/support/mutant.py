"""Ways to make the real hooks and the real view wrong, each of which the checker must see in a virtual fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import router_client.answer as answering
import router_client.standing as standing_of
from events.codec import decode_batch, decode_pulse, dump
from events.fold.staleness import BeaconBook, staleness_ns
from events.hooks.echoing import Echoing
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook
from events.ids import Basis, ExcludeReason, StreamKey
from events.model.control import Registered
from router_client.problem import ProblemKind, problem
from router_client.stream_view import StreamView
from router_client.view import LocalView
from router_client.wire import Answer, Coverage, Excluded, Match, TierTokens
from tests.support.virtual_fleet import VirtualFleet
from tests.support.virtual_log import VirtualLog

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """`breaks` patches the product. Caught within `seeds` runs under `faults` (None: under all)."""

    name: str
    breaks: Patch
    faults: tuple[str, ...] | None = None
    seeds: int = 8
    unconfirmed: bool = False
    apply_lag_s: float = 0.0


def now_ns() -> int:
    return round(asyncio.get_running_loop().time() * 1e9)


# --- the seven of the specification ------------------------------------------------------------------


def echo_from_a_timer(patch: pytest.MonkeyPatch) -> None:
    """The hook echoes the newest beacon whenever it is asked, and asks nobody."""

    def echo(hook: Hook, beacon: Any) -> None:
        hook._echoing.newest, hook._echoing.basis = beacon, Basis.ENGINE

    patch.setattr(Hook, "echo", echo)


def watermark_before_rows(patch: pytest.MonkeyPatch) -> None:
    """A record counts as applied when it is fetched."""
    fetched: dict[StreamKey, int] = {}
    settle = StreamView.settle

    def on_received(fleet: VirtualFleet, value: bytes) -> None:
        header = decode_batch(value).header
        fetched[header.stream] = header.seq + 1
        for view in fleet.view.streams.values():
            fleet.view._settle(view, fleet.now_ns())

    def early(view: StreamView, book: BeaconBook, newest_signal: int) -> int | None:
        applied = view.state.next_seq
        view.state.next_seq = max(applied, fetched.get(view.key, 0))
        try:
            return settle(view, book, newest_signal)
        finally:
            view.state.next_seq = applied

    patch.setattr(VirtualFleet, "on_received", on_received)
    patch.setattr(StreamView, "settle", early)
    patch.setattr(StreamView, "_diverges", lambda view, rank: False)


def staleness_from_append_time(patch: pytest.MonkeyPatch) -> None:
    """An answer is as old as the newest record that was applied, or new if none is waiting."""
    appended: dict[StreamKey, int] = {}
    fetched: dict[StreamKey, int] = {}
    append = VirtualLog.append

    def noted(log: VirtualLog, record: Any) -> None:
        append(log, record)
        appended[record.stream] = now_ns()

    def on_received(fleet: VirtualFleet, value: bytes) -> None:
        header = decode_batch(value).header
        fetched[header.stream] = header.seq + 1

    def fresh(view: StreamView, weakest: Basis) -> tuple[int | None, Basis]:
        behind = fetched.get(view.key, 0) > view.state.next_seq
        return (appended.get(view.key) if behind else now_ns()), Basis.ENGINE

    patch.setattr(VirtualLog, "append", noted)
    patch.setattr(VirtualFleet, "on_received", on_received)
    patch.setattr(StreamView, "fresh", fresh)


def idle_skipped(patch: pytest.MonkeyPatch) -> None:
    """The hook takes an engine that isn't in a step for one that has nothing untold."""
    confirmed = Hook._confirmed

    async def skipping(hook: Hook) -> Basis | None:
        idle = not getattr(hook._port, "_in_step", True)
        return Basis.ENGINE if idle and hook.ready else await confirmed(hook)

    patch.setattr(Hook, "_confirmed", skipping)


def epoch_unchecked(patch: pytest.MonkeyPatch) -> None:
    """A pulse counts for whichever epoch of the worker this reader knows."""
    apply_pulse = LocalView.apply_pulse

    def any_epoch(view: LocalView, value: bytes, at_ns: int) -> None:
        pulse = decode_pulse(value)
        ranks = []
        for rank in pulse.ranks:
            current = view.registry.current.get((pulse.worker, rank.rank))
            ranks.append(rank if current is None else rank.model_copy(update={"epoch": current.epoch}))
        apply_pulse(view, dump(pulse.model_copy(update={"ranks": tuple(ranks)})), at_ns)

    patch.setattr(LocalView, "apply_pulse", any_epoch)
    patch.setattr(StreamView, "_diverges", lambda view, rank: False)


def nonce_unchecked(patch: pytest.MonkeyPatch) -> None:
    """An echo counts by its offset alone."""
    patch.setattr(BeaconBook, "known", lambda book, offset, nonce: offset in book._nonces)


def absence_without_coverage(patch: pytest.MonkeyPatch) -> None:
    """Only those that can be answered for count as eligible."""

    def blind(*of: Any) -> Any:
        eligible, others = standing_of.survey(*of)
        return [one for one in eligible if one.reason is None], others

    patch.setattr(answering, "survey", blind)


# --- the reader --------------------------------------------------------------------------------------


def pulse_before_applied(patch: pytest.MonkeyPatch) -> None:
    """A pulse counts when it is heard, whatever is applied."""
    settle = StreamView.settle

    def early(view: StreamView, book: BeaconBook, newest_signal: int) -> int | None:
        applied, view.state.next_seq = view.state.next_seq, 1 << 60
        try:
            return settle(view, book, newest_signal)
        finally:
            view.state.next_seq = applied

    patch.setattr(StreamView, "settle", early)


def control_age_ignored(patch: pytest.MonkeyPatch) -> None:
    """How old the reader's own view of kv.control is doesn't matter."""

    def age_ns(at_ns: int, begun_ns: int | None, control_ns: int | None) -> int | None:
        return None if begun_ns is None else max(0, at_ns - begun_ns)

    patch.setattr(standing_of, "staleness_ns", age_ns)


def newest_beacon_for_any_echo(patch: pytest.MonkeyPatch) -> None:
    """Whatever beacon is echoed, the reader takes its newest one for it."""

    def begun_at(book: BeaconBook, offset: int, nonce: bytes) -> int | None:
        return book._own_begun[-1] if book._own_begun and book.known(offset, nonce) else None

    patch.setattr(BeaconBook, "begun_at", begun_at)


def age_from_read_back(patch: pytest.MonkeyPatch) -> None:
    """A beacon's age counts from when it was read, not from when its writing began."""
    read_back = BeaconBook.read_back

    def late(book: BeaconBook, offset: int, reader: str, nonce: bytes) -> None:
        if nonce in book._writing:
            book._writing[nonce] = now_ns()
        read_back(book, offset, reader, nonce)

    patch.setattr(BeaconBook, "read_back", late)


def superseded_stream_credited(patch: pytest.MonkeyPatch) -> None:
    """A later registration doesn't end a stream whose engine nobody has declared dead."""
    folded = LocalView.control_folded

    def kept(view: LocalView, record: Any, why: str) -> None:
        body = record.body if record is not None else None
        if isinstance(body, Registered):
            older = [key for key in view.streams if (key.worker, key.rank) == (body.worker, body.rank)]
            if older and not view.registry.ended(older[0]):
                view.registry.current[body.worker, body.rank] = older[0]
        folded(view, record, why)

    patch.setattr(LocalView, "control_folded", kept)


def bound_not_enforced(patch: pytest.MonkeyPatch) -> None:
    """What is older than the caller allows is answered as if it weren't."""
    patch.setattr(standing_of, "_judge_age", lambda *of: None)


def half_the_age(patch: pytest.MonkeyPatch) -> None:
    """Half of the true age is told."""

    def half(*of: Any) -> int | None:
        known = staleness_ns(*of)
        return None if known is None else known // 4

    patch.setattr(standing_of, "staleness_ns", half)


def best_age_for_all(patch: pytest.MonkeyPatch) -> None:
    """The answer is called as fresh as its freshest stream."""
    age = answering._age

    def best(included: Any, wall_ms: int) -> Any:
        known = [one for one in included if one.staleness_ms is not None]
        return age(sorted(known, key=lambda one: one.staleness_ms)[:1], wall_ms)

    patch.setattr(answering, "_age", best)


def eviction_not_indexed(patch: pytest.MonkeyPatch) -> None:
    """What is evicted stays in the prefix index."""
    patch.setattr(StreamView, "_evict", lambda view, where, ids: None)


def divergence_ignored(patch: pytest.MonkeyPatch) -> None:
    """What a pulse says of the inventory is not compared with it."""
    patch.setattr(StreamView, "_diverges", lambda view, rank: False)


# --- the hook ----------------------------------------------------------------------------------------


def echo_before_confirmation(patch: pytest.MonkeyPatch) -> None:
    """The hook echoes a beacon as soon as it has asked, not when it was answered."""

    async def early(echoing: Echoing, beacon: Any) -> None:
        echoing.newest, echoing.basis = beacon, Basis.ENGINE
        await echoing._confirm()

    patch.setattr(Echoing, "_confirm_for", early)


def unconfirmed_called_published(patch: pytest.MonkeyPatch) -> None:
    """A bridge that nobody answers says that it was answered."""
    confirmed = Hook._confirmed

    async def stronger(hook: Hook) -> Basis | None:
        basis = await confirmed(hook)
        return Basis.PUBLISHED if basis is Basis.UNCONFIRMED else basis

    patch.setattr(Hook, "_confirmed", stronger)


def inventory_outlives_the_engine(patch: pytest.MonkeyPatch) -> None:
    """Another engine life is taken for the same one: what was held is restated."""
    opened = EngineStream.open

    def kept(stream: EngineStream, engine_life: str, *, from_birth: bool = True) -> Any:
        if stream.engine_life:
            stream.engine_life = engine_life
        return opened(stream, engine_life, from_birth=from_birth)

    patch.setattr(EngineStream, "open", kept)


def clear_not_told(patch: pytest.MonkeyPatch) -> None:
    """The hook doesn't tell that the engine has cleared its cache."""
    patch.setattr(EngineStream, "_cleared", lambda stream, draft, event: None)


# --- refusals and exclusions -------------------------------------------------------------------------


def blanket_refusal(patch: pytest.MonkeyPatch) -> None:
    """Every lookup is a 503."""
    refusal = problem(ProblemKind.STALENESS_BOUND_UNMET, "no")
    patch.setattr(answering, "answer", lambda *of: refusal)


def _excluding(reason: ExcludeReason, wanted: Callable[[str], bool]) -> Patch:
    def breaks(patch: pytest.MonkeyPatch) -> None:
        def excluding(*of: Any) -> Any:
            eligible, others = standing_of.survey(*of)
            for one in eligible:
                if one.reason is None and wanted(one.key.worker):
                    one.reason = reason
            return eligible, others

        patch.setattr(answering, "survey", excluding)

    return breaks


def everybody_left_out(patch: pytest.MonkeyPatch) -> None:
    """Every answer is a 200 that knows nobody."""
    answer = answering.answer

    def empty(*of: Any) -> Any:
        found = answer(*of)
        if not isinstance(found, Answer):
            return found
        left_out = [
            answering_excluded(match.worker, match.dp_rank, match.staleness_ms) for match in found.matches
        ]
        named = {(e.worker, e.dp_rank) for e in [*left_out, *found.excluded]}
        left_out += [
            answering_excluded(key.worker, key.rank, None)
            for key in of[0].registry.current.values()
            if (key.worker, key.rank) not in named
        ]
        return found.model_copy(
            update={"matches": [], "excluded": [*found.excluded, *left_out], "complete": False}
        )

    patch.setattr(answering, "answer", empty)


def _telling(changed: Callable[[Answer], Answer]) -> Patch:
    """Every answer is told otherwise, unless it is about candidates, each of whom is owed an entry."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        answer = answering.answer

        def telling(*of: Any) -> Any:
            found = answer(*of)
            return changed(found) if isinstance(found, Answer) and of[1].candidates is None else found

        patch.setattr(answering, "answer", telling)

    return breaks


def all_matches_dropped(found: Answer) -> Answer:
    """A 200 that covers everybody and names nobody."""
    return found.model_copy(update={"matches": [], "complete": False})


def one_holder_dropped(found: Answer) -> Answer:
    """One worker is never named."""
    kept = [match for match in found.matches if match.worker != "w1"]
    return found.model_copy(update={"matches": kept, "complete": False})


def a_block_less(flags: dict[str, Any]) -> Callable[[Answer], Answer]:
    """Every match is a block shorter than it is, and flagged."""

    def shortened(match: Match) -> Match:
        size = match.matched_tokens // max(1, match.matched_blocks)
        left = max(0, match.matched_tokens - size)
        tiers = TierTokens(
            *(min(left, t) for t in (match.tiers.gpu, match.tiers.cpu, match.tiers.disk, match.tiers.remote))
        )
        return replace(match, matched_blocks=left // max(1, size), matched_tokens=left, tiers=tiers, **flags)

    return lambda found: found.model_copy(update={"matches": [shortened(m) for m in found.matches]})


def never_complete(found: Answer) -> Answer:
    """No answer ever claims absence."""
    return found.model_copy(update={"complete": False})


def uncounted(found: Answer) -> Answer:
    """One worker fewer is covered, and not a word said of whom."""
    counted = Coverage(included=max(0, found.coverage.included - 1), eligible=found.coverage.eligible)
    return found.model_copy(update={"complete": False, "coverage": counted})


def answering_excluded(worker: str, rank: int, staleness_ms: float | None) -> Any:
    return Excluded(worker=worker, dp_rank=rank, reason=ExcludeReason.STALE, staleness_ms=staleness_ms)


CALM = ("repeat", "hold")
RESTARTS = ("restart", "stall_control", "replace")
SPECIFIED = (
    Mutant("echo from a timer", echo_from_a_timer),
    Mutant("watermark before rows", watermark_before_rows, apply_lag_s=0.2),
    Mutant("staleness from append time", staleness_from_append_time),
    Mutant("idle skipped", idle_skipped, ("reset",)),
    Mutant("epoch unchecked", epoch_unchecked, RESTARTS),
    Mutant("nonce unchecked", nonce_unchecked, ("cut_signals",)),
    Mutant("absence without coverage", absence_without_coverage),
)
FURTHER = (
    Mutant("pulse counted before applied", pulse_before_applied),
    Mutant("age of the control view ignored", control_age_ignored, ("stall_control",)),
    Mutant("newest beacon for any echo", newest_beacon_for_any_echo),
    Mutant("age from the read-back", age_from_read_back, ("stall",)),
    Mutant("superseded stream credited", superseded_stream_credited, ("replace",)),
    Mutant("bound not enforced", bound_not_enforced),
    Mutant("a quarter of the age told", half_the_age),
    Mutant("best age for all", best_age_for_all),
    Mutant("eviction not indexed", eviction_not_indexed),
    Mutant("divergence ignored", divergence_ignored, ("omit",)),
    Mutant("echo before confirmation", echo_before_confirmation),
    Mutant("unconfirmed called published", unconfirmed_called_published, unconfirmed=True),
    Mutant("inventory outlives the engine", inventory_outlives_the_engine, ("restart",)),
    Mutant("clear not told", clear_not_told, ("reset",)),
    Mutant("blanket 503", blanket_refusal, CALM),
    Mutant("everybody left out", everybody_left_out, CALM),
    Mutant("one left out as gap", _excluding(ExcludeReason.GAP, lambda name: name == "w0"), CALM),
    Mutant(
        "one left out as quarantined", _excluding(ExcludeReason.QUARANTINED, lambda name: name == "w1"), CALM
    ),
    Mutant("one left out as stale", _excluding(ExcludeReason.STALE, lambda name: name == "w0"), CALM),
    Mutant("one left out as silent", _excluding(ExcludeReason.SILENT, lambda name: name == "w2"), CALM),
    Mutant(
        "one left out as unconfirmed", _excluding(ExcludeReason.UNCONFIRMED, lambda name: name == "w2"), CALM
    ),
    Mutant("all matches dropped", _telling(all_matches_dropped), CALM),
    Mutant("one holder dropped", _telling(one_holder_dropped), CALM),
    Mutant("a block less", _telling(a_block_less({})), CALM),
    Mutant("a block less, called partial", _telling(a_block_less({"inventory": "partial"})), CALM),
    Mutant("a block less, called unverified", _telling(a_block_less({"identity": "unverified"})), CALM),
    Mutant("never complete", _telling(never_complete), CALM),
    Mutant("one not counted", _telling(uncounted), CALM),
)
