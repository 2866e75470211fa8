"""An audit that goes on where an earlier one stood comes to what the log from its start gives, or begins there."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor import seen
from auditor.fold_state import FoldStateError, LastRecord, Resumed, pack, unpack
from auditor.live import LiveAudit
from auditor.seen import SeenHashes
from auditor.verdict import judge
from events.ids import Role, VerdictKind
from events.model.control import DomainCreated, IdsScope, PrefixScope, Registered, Scope, TenantScope
from events.signing import verify
from tests.support.audit_fault import PROFILES, Faults
from tests.support.audit_log import AuditLog, HookStub
from tests.support.audit_simulation import SimFleet
from tests.support.bundle import AUDITOR
from tests.support.light_log import KEYS as SIM_KEYS
from tests.support.light_log import LightSigner, light_verify
from tests.support.log import block
from tests.support.memory_archive import SealedLog
from tests.support.read_log import KEYS, Log

RULE = bytes(32)


class MemorySpill:
    """A file of older hashes."""

    def __init__(self) -> None:
        self.content = b""

    def append(self, chunk: bytes) -> int:
        self.content += chunk
        return len(self.content) - len(chunk)

    def read(self, at: int, size: int) -> bytes:
        return self.content[at : at + size]


class ResumingFleet(SimFleet):
    """Its evidence is turned into bytes and back at any step."""

    signer = LightSigner(b"a" * 32)

    def __init__(self, seed: int, faults: Faults) -> None:
        super().__init__(seed, faults)
        self.resumes, self.spill = random.Random(seed), MemorySpill()
        self.resumed = 0

    def deliver(self, step: int) -> None:
        super().deliver(step)
        if self.evidence is None or self.resumes.random() > 0.1:
            return
        raw = pack(self.evidence, [], (0, bytes(32)), self.spill, 0, self.signer, RULE)  # type: ignore[arg-type]
        if raw is None:
            assert not self.registry.contiguous
            return
        self.evidence = unpack(
            raw,
            self.request,
            self.registry,
            SIM_KEYS,
            light_verify,
            self.signer.public_key,
            {0: bytes(32)},
            self.spill,
            RULE,
        ).evidence
        self.resumed += 1


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_an_evidence_from_bytes_goes_on_like_the_one_in_memory(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "CHUNK", 2)
    resumed = 0
    for seed in range(30):
        plain, bytes_ = SimFleet(seed, PROFILES[profile]), ResumingFleet(seed, PROFILES[profile])
        plain.run()
        bytes_.run()
        assert plain.evidence is not None
        assert bytes_.evidence is not None
        assert judge(bytes_.evidence, ()) == judge(plain.evidence, ()), seed
        resumed += bytes_.resumed
    assert resumed > 50


class Steps:
    """A log that grows by what Hypothesis chooses, audited twice: from its start, and from where it was read to."""

    def __init__(self, scope: Scope) -> None:
        self.sealed = SealedLog(AuditLog())
        self.log = self.sealed.log
        self.hooks = [self.log.hook("w0").open(), self.log.hook("w10").open()]
        self.hooks[0].store("acme", 1, 2, 3)
        self.request = self.log.delete(scope)
        self.states: dict[int, bytes] = {}
        self.read = 0
        self.strangers: list[HookStub] = []

    def act(self, what: str, which: int, name: int) -> None:
        hook = self.hooks[which % len(self.hooks)]
        match what:
            case "store":
                hook.store("acme", name, name + 1)
            case "old":
                hook.store("acme", name, admitted=self.request - 1)
            case "lost":
                hook.store("acme", name, lost=True)
            case "again":
                told = self.log.events[hook.partition]
                told.append(told[name % len(told)])
            case "forged":
                hook.store("acme", name, prev=bytes(32))
            case "obey":
                hook.obey(self.request)
            case "nonce":
                hook.ack(self.request, nonce=self.log.nonce(self.request))
            case "snapshot":
                hook.snapshot()
            case "reattach":
                heir = self.log.hook(hook.worker, life=hook.life)
                heir.held = hook.held
                heir.open()
                self.hooks.append(heir)
            case "attest":
                self.log.attest(hook)
            case "fence":
                self.log.fence(hook)
            case "domain":
                self.log.say(DomainCreated(domain=f"acme/{name}", tenant="acme"), Role.CONTROL)
            case "stranger":
                self.strangers.append(stranger(self.log, hook))
            case "register":
                for late in self.strangers[-1:]:
                    body = Registered(
                        worker=late.worker,
                        rank=0,
                        epoch=late.epoch,
                        engine_life=late.life,
                        public_key=late.signer.public_key,
                        partition=late.partition,
                    )
                    self.log.say(body, Role.ENROLMENT)
            case _:
                raise AssertionError(what)

    async def audit(self, *, resume: bool) -> LiveAudit:
        """Seals too, as the command does."""
        log = Log(self.log)
        audit = LiveAudit(log, KEYS, verify, monotonic_s=lambda: 0.0, poll_s=0.0)  # type: ignore[arg-type]
        await audit.open()
        main = self.sealed.main()
        found: Resumed | None = None
        if resume and self.states:
            (raw,) = self.states.values()
            try:
                found = unpack(
                    raw,
                    self.request,
                    audit.registry,
                    KEYS,
                    verify,
                    AUDITOR.public_key,
                    main.roots,
                    None,
                    RULE,
                )
            except FoldStateError:
                self.states.clear()
        await audit.attach(main.segments, None if found is None else {self.request: found})
        await audit.run([self.request], 0.0, self.no_nonce)
        self.read = log.events.read
        return audit

    async def no_nonce(self, _: Sequence[int]) -> int:
        return 0

    def keep(self, audit: LiveAudit) -> None:
        self.sealed.seal()
        main = self.sealed.main()
        ends = [last_record(audit, p, end) for p, end in audit.ends.items()]
        raw = pack(
            audit.evidence[self.request], ends, (main.size, main.roots[main.size]), None, 0, AUDITOR, RULE
        )
        self.states = {} if raw is None else {self.request: raw}


def last_record(audit: LiveAudit, partition: int, end: int) -> LastRecord:
    offset, leaf = audit.last.get(partition, (None, None))
    return LastRecord(partition=partition, end=end, offset=offset, leaf=leaf)


def stranger(log: AuditLog, like: HookStub) -> HookStub:
    """A hook whose registration comes later than its records, if at all."""
    stub = HookStub(
        log, like.worker, f"late-{len(log.hooks)}", like.life, like.epoch_no, like.partition, like.signer
    )
    stub.prev = bytes(32)
    log.hooks.append(stub)
    return stub.open()


ACTS = (
    "store",
    "store",
    "old",
    "lost",
    "again",
    "forged",
    "obey",
    "obey",
    "nonce",
    "nonce",
    "snapshot",
    "reattach",
    "attest",
    "fence",
    "domain",
    "stranger",
    "register",
)
acts = st.tuples(st.sampled_from(ACTS), st.integers(0, 3), st.integers(0, 5))
scopes = st.sampled_from(
    (
        TenantScope(tenant="acme"),
        PrefixScope(domain="acme", ids=(block("acme", 1),)),
        IdsScope(domain="acme", ids=(block("acme", 3),)),
    )
)


@settings(max_examples=40, deadline=None)
@given(scopes, st.lists(st.lists(acts, max_size=5), min_size=1, max_size=5))
async def test_incremental_audits_give_the_verdicts_of_whole_ones(
    scope: Scope, rounds: list[list[tuple[str, int, int]]]
) -> None:
    steps = Steps(scope)
    for round_ in rounds:
        for act in round_:
            steps.act(*act)
        whole = await steps.audit(resume=False)
        newer = await steps.audit(resume=True)
        assert judge(newer.evidence[steps.request], newer.frontier) == judge(
            whole.evidence[steps.request], whole.frontier
        )
        settled, expected = newer.settle(), whole.settle()
        assert (settled.problems, settled.new) == (expected.problems, expected.new)
        steps.keep(newer)


async def proven() -> Steps:
    """Proven, with a state kept."""
    steps = Steps(TenantScope(tenant="acme"))
    for which in (0, 1):
        steps.act("obey", which, 0)
    nonce = steps.log.nonce(steps.request)
    for hook in steps.hooks:
        hook.ack(steps.request, nonce=nonce)
    audit = await steps.audit(resume=True)
    assert judge(audit.evidence[steps.request], audit.frontier).kind is VerdictKind.PROVEN
    steps.keep(audit)
    return steps


async def test_an_incremental_audit_reads_what_is_new_and_the_last_record_of_before() -> None:
    steps = await proven()
    steps.hooks[0].store("umbrella", 7)
    audit = await steps.audit(resume=True)
    assert set(audit.resumed) == {steps.request}
    assert steps.read == 3  # of two partitions the last, and the new one
    assert judge(audit.evidence[steps.request], audit.frontier).kind is VerdictKind.PROVEN


async def test_a_state_that_was_changed_or_is_another_s_is_not_used() -> None:
    steps = await proven()
    (raw,) = steps.states.values()
    rng = random.Random(1)
    for at in [*rng.sample(range(len(raw)), 80), len(raw)]:
        spoiled = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] if at < len(raw) else raw[:-1]
        steps.states = {steps.request: spoiled}
        audit = await steps.audit(resume=True)
        assert audit.resumed == {}
    other = await proven()
    other.log.say(DomainCreated(domain="later", tenant="umbrella"), Role.CONTROL)
    elsewhere = Steps(TenantScope(tenant="acme"))
    elsewhere.act("store", 0, 5)
    elsewhere.keep(await elsewhere.audit(resume=False))
    for steps, states in ((other, elsewhere.states), (elsewhere, other.states)):
        steps.states = dict(states)
        assert (await steps.audit(resume=True)).resumed == {}


async def test_a_log_whose_newest_records_were_cut_is_read_from_its_start() -> None:
    steps = await proven()
    records = steps.log.events[steps.hooks[0].partition]
    records[-1] = records[0]
    steps.hooks[0].seq, steps.hooks[0].prev = 99, bytes(32)
    audit = await steps.audit(resume=True)
    assert audit.resumed == {}
    assert audit.settle().problems
    assert judge(audit.evidence[steps.request], audit.frontier).kind is not VerdictKind.PROVEN


async def test_a_state_unpickles_nothing_but_our_own_values() -> None:
    import pickle

    from auditor.fold_state import _Unpickler

    for value in (pickle.dumps(eval), pickle.dumps(verify), pickle.dumps(pytest.raises), b"garbage"):
        import io

        with pytest.raises(pickle.UnpicklingError):
            _Unpickler(io.BytesIO(value), None).load()


def test_older_header_hashes_are_found_in_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "CHUNK", 3)
    spill = MemorySpill()
    one, plain = SeenHashes(spill), SeenHashes()
    numbers = sorted(random.Random(2).sample(range(200), 90))
    for seq in numbers:
        for kept in (one, plain):
            kept.add(seq, seq.to_bytes(32, "big"))
    for seq in range(200):
        assert one.get(seq) == plain.get(seq) == (seq.to_bytes(32, "big") if seq in numbers else None)
    assert (one.first, len(spill.content)) == (numbers[0], 90 * 40)
    spill.content = spill.content[:-1] + b"x"
    with pytest.raises(seen.SpillError):
        one.get(numbers[-1])
