"""Exhibits: what is done to the log."""

from __future__ import annotations

from events.chain import sha256
from events.ids import VerdictReason
from events.model.control import (
    DomainScope,
    IdsScope,
)
from tests.museum.exhibit import exhibit, shown
from tests.support.audit_log import RawEvent
from tests.support.bundle import bundle
from tests.support.deletion_case import PENDING, UNPROVABLE, Fleet
from tests.support.log import block


@exhibit("pruned prefix", PENDING, VerdictReason.RETENTION_TRUNCATED)
def pruned_prefix(trick: bool) -> bytes:
    """Retention takes the beginning of the log, with every store in it."""
    fleet = Fleet()
    fleet.finish()
    if trick:
        fleet.log.starts[fleet.a.partition] = 3
    return shown(fleet)


@exhibit("compacted control log", UNPROVABLE, VerdictReason.TOPIC_COMPACTED)
def compacted_control_log(trick: bool) -> bytes:
    """The registration of a worker is taken out of kv.control, and with it the worker that owes an ack."""
    fleet = Fleet()
    silent = fleet.log.hook("w100")
    if not trick:
        silent.open()
    fleet.finish(fleet.a, fleet.b, *([] if trick else [silent]))
    lost = frozenset({silent.epoch_no}) if trick else frozenset[int]()
    return bundle(fleet.log, fleet.request, lost=lost)


@exhibit("dropped store", PENDING, VerdictReason.SEQ_GAP)
def dropped_store(trick: bool) -> bytes:
    """The one record that tells of an old copy never reaches the log."""
    fleet = Fleet()
    ids = fleet.a.store("acme", 9, admitted=3, lost=trick)
    fleet.a.held["gpu", "acme"].pop(ids[0])
    if not trick:
        fleet.a.remove("acme", ids)
    fleet.finish()
    return shown(fleet)


@exhibit("split view", UNPROVABLE, VerdictReason.CHAIN_BREAK)
def split_view(trick: bool) -> bytes:
    """One worker is shown another kv.control than the auditor."""
    fleet = Fleet()
    original = fleet.log.control_hash
    if trick:
        fleet.log.control_hash = lambda offset: sha256(b"another log")  # type: ignore[method-assign]
    fleet.a.obey(fleet.request)
    fleet.log.control_hash = original  # type: ignore[method-assign]
    fleet.b.obey(fleet.request)
    fleet.close()
    return shown(fleet)


@exhibit("request truncated and its offset reused", UNPROVABLE, VerdictReason.CHAIN_BREAK)
def request_replaced(trick: bool) -> bytes:
    """kv.control is cut before the request, and a smaller one gets its number and its acks."""
    fleet = Fleet()
    ids = (block("acme", "harmless"),)
    if not trick:
        fleet.request = fleet.log.delete(IdsScope(domain="acme", ids=ids))
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request, "acme")
    if trick:
        del fleet.log.control.records[fleet.request :]
        assert fleet.log.delete(DomainScope(domain="acme")) == fleet.request
    nonce = fleet.log.nonce(fleet.request)
    for hook in (fleet.a, fleet.b):
        hook.ack(fleet.request, "acme", nonce=nonce)
    return shown(fleet)


@exhibit("two records of one number", UNPROVABLE, VerdictReason.EQUIVOCATION)
def two_records_of_one_number(trick: bool) -> bytes:
    """A stream tells one reader of an old copy and another reader something else."""
    fleet = Fleet()
    seq, prev = fleet.a.seq, fleet.a.prev
    fleet.finish()
    if trick:
        fleet.a.seq, fleet.a.prev = seq, prev
        fleet.a.store("acme", 77, admitted=3)
    return shown(fleet)


@exhibit("record damaged in the log", PENDING, VerdictReason.UNPARSEABLE_RECORD)
def record_damaged_in_the_log(trick: bool) -> bytes:
    """The record that tells of an old copy is overwritten, so that nobody can read it."""
    fleet = Fleet()
    ids = fleet.a.store("acme", 9, admitted=3)
    if trick:
        records = fleet.log.events[fleet.a.partition]
        records[-1] = RawEvent(records[-1].value.replace(b'"gpu"', b"77777"), None)
        fleet.a.held["gpu", "acme"].pop(ids[0])
    fleet.finish()
    return shown(fleet)
