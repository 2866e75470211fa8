"""Which holders have a prefix, and how much of it: exact longest-prefix match over bit masks.

A bit stands for one thing that can hold copies. `resident` has it when that holds the block, `rooted` when it
also holds every ancestor. A rooted set only shrinks along a chain, so equal masks at two depths settle all
depths between them and a binary search is exact, also after an eviction in mid-chain.

Work for one change is bounded: what a popular block's many continuations still need waits in a backlog, and
`unsettled` names the bits whose answers must not be used until `work` has drained it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from events.ids import ROOT_PARENT
from router_client.refused_store import RefusedStores

STEPS_PER_CHANGE = 2_000
"""Continuations looked at within one call of `store` or `evict` before the rest is put off."""
SMALL_INT = 256
"""CPython keeps one object for each integer up to here; above, equal masks are made one object."""


class PrefixIndex:
    """Blocks by id, whatever their domain: ids of different domains never meet.

    Not safe for use by several threads. A block's parent is fixed by its id, so a store that names another
    parent than the one known is refused (`conflicts` counts them): a liar may cost hits, never a wrong match.
    What was refused waits in `refused`, and is stored once nobody holds the block under the other parent.
    """

    __slots__ = (
        "_backlog",
        "_children",
        "_free",
        "_masks",
        "_next",
        "_parent",
        "_releases",
        "_resident",
        "_retired",
        "_rooted",
        "conflicts",
        "refused",
        "unsettled",
    )

    def __init__(self) -> None:
        self._resident: dict[bytes, int] = {}
        self._rooted: dict[bytes, int] = {}
        self._parent: dict[bytes, bytes] = {}
        self._children: dict[bytes, bytes | set[bytes]] = {}
        self._masks: dict[int, int] = {}
        self._backlog: dict[int, set[bytes]] = {}
        """By bits the blocks that are still to be looked at. A block waits once however often its parent comes
        and goes, so what waits is never more than what is held."""
        self._releases: deque[tuple[int, list[bytes]]] = deque()
        self._free: list[int] = []
        self._next = 0
        self._retired = 0
        self.refused = RefusedStores()
        self.unsettled = 0
        self.conflicts = 0

    def __len__(self) -> int:
        return len(self._resident)

    def new_bit(self) -> int:
        """A bit that nothing holds; freed ones are used again, so that masks stay short."""
        if self._free:
            return self._free.pop()
        self._next += 1
        return 1 << (self._next - 1)

    def release(self, bits: int, ids: Sequence[bytes]) -> None:
        """Gives bits back with everything that is held under them, evicted step by step in `work`. The caller
        no longer counts them in `live`; they are used again once nothing is left."""
        self._releases.append((bits, list(ids)))
        self._retired |= bits

    def _recycle(self) -> None:
        busy = self.unsettled | self.refused.bits
        for bits, _ in self._releases:
            busy |= bits
        free = self._retired & ~busy
        self._retired &= ~free
        while free:
            bit = free & -free
            self._free.append(bit)
            free ^= bit
        self._free.sort(reverse=True)

    def holds(self, block: bytes) -> int:
        """Mask of the bits under which the block itself is resident."""
        return self._resident.get(block, 0)

    def store(self, bits: int, ids: Sequence[bytes], parents: Sequence[bytes]) -> None:
        """The blocks are now held under `bits`; `parents[i]` belongs to `ids[i]`, zeros meaning the root.

        Idempotent. Ids need not be in chain order, parents need not be resident.
        """
        if self.refused.bits & bits:
            self.refused.drop(bits, ids)
        resident, rooted, parent_of = self._resident, self._rooted, self._parent
        children = self._children
        late: list[bytes] = []
        last = len(ids) - 1
        for at, (block, parent) in enumerate(zip(ids, parents, strict=True)):
            mask = resident.get(block)
            if mask is None:
                resident[block] = self._one(bits)
                parent_of[block] = parent
                if parent != ROOT_PARENT:
                    self._link(parent, block)
            elif parent_of[block] != parent:
                self.conflicts += 1
                self.refused.add(bits, block, parent)
                continue
            elif mask & bits != bits:
                resident[block] = self._one(mask | bits)
            root = bits if parent == ROOT_PARENT else rooted.get(parent, 0) & bits
            if root:
                had = rooted.get(block, 0)
                if had & root != root:
                    rooted[block] = self._one(had | root)
                    kids = children.get(block)
                    # The only continuation is most often the very next block of the run.
                    if kids is not None and not (
                        at < last and kids == ids[at + 1] and parents[at + 1] == block
                    ):
                        self._put_off(bits, kids, late)
        if late:
            self._settle(bits, late)

    def evict(self, bits: int, ids: Sequence[bytes]) -> None:
        """The blocks are no longer held under `bits`. Idempotent."""
        resident, rooted, children = self._resident, self._rooted, self._children
        late: list[bytes] = []
        admitted: list[bytes] = []
        if self.refused.bits & bits:
            self.refused.drop(bits, ids)
        for block in ids:
            mask = resident.get(block, 0)
            if not mask & bits:
                continue
            had = rooted.get(block, 0)
            if had & bits:
                if had & ~bits:
                    rooted[block] = self._one(had & ~bits)
                else:
                    del rooted[block]
                kids = children.get(block)
                if kids is not None:
                    self._put_off(bits, kids, late)
            if mask & ~bits:
                resident[block] = self._one(mask & ~bits)
            else:
                del resident[block]
                self._unlink(block)
                if block in self.refused:
                    admitted.append(block)
        if late:
            self._settle(bits, late)
        for block in admitted:
            found = self.refused.take(block)
            if found is not None:
                self.store(found[0], (block,), (found[1],))

    def work(self, steps: int) -> bool:
        """Drains up to `steps` of the backlog; true when nothing is left and every bit is settled."""
        while self._releases and steps > 0:
            bits, ids = self._releases[0]
            now, steps = ids[-steps:], steps - len(ids)
            del ids[-len(now) :]
            self.evict(bits, now)
            if not ids:
                self._releases.popleft()
        while self._backlog and steps > 0:
            bits, waiting = next(iter(self._backlog.items()))
            todo = [waiting.pop() for _ in range(min(len(waiting), steps))]
            steps = self._run(bits, todo, steps)
            waiting.update(todo)
            # In turn, so that one holder's never-ending changes hold up nobody else's.
            del self._backlog[bits]
            if waiting:
                self._backlog[bits] = waiting
        self.unsettled = 0
        for bits in self._backlog:
            self.unsettled |= bits
        if self._retired:
            self._recycle()
        return not self._backlog and not self._releases

    def match(self, blocks: Sequence[bytes], live: int) -> dict[int, int]:
        """{bit: leading blocks held} for the bits of `live` (none of them unsettled), those with none left
        out. O(changes of the mask x log blocks)."""
        out: dict[int, int] = {}
        count = len(blocks)
        if not count:
            return out
        rooted = self._rooted.get
        mask = rooted(blocks[0], 0) & live
        depth = 0
        while mask:
            last = rooted(blocks[-1], 0) & live
            if last == mask:
                after, end = 0, count
            else:
                low, end = depth, count - 1
                while end - low > 1:
                    middle = (low + end) >> 1
                    if rooted(blocks[middle], 0) & live == mask:
                        low = middle
                    else:
                        end = middle
                after = rooted(blocks[end], 0) & live
            gone = mask & ~after
            while gone:
                bit = gone & -gone
                out[bit] = end
                gone ^= bit
            mask, depth = after, end
        return out

    def resident_run(self, blocks: Sequence[bytes], bit: int) -> list[bool]:
        """For each block whether it is held under `bit`, whatever its ancestors: what sliding windows and
        recurrent states ask."""
        resident = self._resident.get
        return [bool(resident(block, 0) & bit) for block in blocks]

    def _one(self, mask: int) -> int:
        if mask <= SMALL_INT:
            return mask
        if len(self._masks) > 65_536:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)

    def _put_off(self, bits: int, kids: bytes | set[bytes], late: list[bytes]) -> None:
        """Continuations of a block that changed: soon, or, where there are very many, in `work`."""
        if isinstance(kids, bytes):
            late.append(kids)
        elif len(kids) + len(late) <= STEPS_PER_CHANGE:
            late.extend(kids)
        else:
            self._wait(bits, kids)

    def _wait(self, bits: int, blocks: Iterable[bytes]) -> None:
        waiting = self._backlog.get(bits)
        if waiting is None:
            self._backlog[bits] = set(blocks)
        else:
            waiting.update(blocks)
        self.unsettled |= bits

    def _link(self, parent: bytes, block: bytes) -> None:
        kids = self._children.get(parent)
        if kids is None:
            self._children[parent] = block
        elif isinstance(kids, set):
            kids.add(block)
        else:
            self._children[parent] = {kids, block}

    def _unlink(self, block: bytes) -> None:
        parent = self._parent.pop(block)
        kids = self._children.get(parent)
        if isinstance(kids, set):
            kids.discard(block)
            if not kids:
                del self._children[parent]
        elif kids == block:
            del self._children[parent]

    def _settle(self, bits: int, todo: list[bytes]) -> None:
        self._run(bits, todo, STEPS_PER_CHANGE)
        if todo:
            self._wait(bits, todo)

    def _run(self, bits: int, todo: list[bytes], steps: int) -> int:
        """Makes `rooted` of the blocks right again, and of their continuations where it changed. What a block
        must be depends on its parent alone, so the order, and changes in between, don't matter."""
        resident, rooted, parent_of = self._resident, self._rooted, self._parent
        children = self._children
        while todo and steps > 0:
            steps -= 1
            block = todo.pop()
            parent = parent_of.get(block)
            if parent is None:
                continue
            above = bits if parent == ROOT_PARENT else rooted.get(parent, 0) & bits
            had = rooted.get(block, 0)
            now = (had & ~bits) | (resident.get(block, 0) & above)
            if now == had:
                continue
            if now:
                rooted[block] = self._one(now)
            else:
                del rooted[block]
            kids = children.get(block)
            if kids is not None:
                self._put_off(bits, kids, todo)
        return steps
