"""From engine hashes to block ids: which chain a block belongs to, and what it is called.

Tokens are read here and kept nowhere. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from events.hooks.domain_book import Chain, DomainBook
from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    TOKEN_SIZE_BYTES,
    BlockStored,
    EngineHash,
    ExtraKeys,
)
from events.identity import Extra

_MAX_OFFSET = 1 << 31


class Node:
    """One engine hash and what it stands for; `block` is empty for a hash without id (orphan, or `unassigned`
    if its salt is nobody's). `uses` counts the holders and groups that have a copy. Parents stay reachable
    from their children, also when their own hash is forgotten."""

    __slots__ = ("block", "chain", "hash", "parent", "unassigned", "uses")

    def __init__(
        self,
        name: EngineHash,
        block: bytes,
        parent: Node | None,
        chain: Chain | None,
        unassigned: bool = False,
    ) -> None:
        self.hash = name
        self.block = block
        self.parent = parent
        self.chain = chain
        self.unassigned = unassigned
        self.uses = 0

    @property
    def parent_block(self) -> bytes | None:
        """Id of the block before this one; None at a profile's root."""
        return self.parent.block if self.parent is not None else None


class HashMap:
    """Engine hash -> node, by block size, within one engine life.

    A hash is kept while a copy of it exists anywhere, so the map is bounded by the pools, and for the last
    `hashes_remembered` (up to twice as many) that lost their last copy; call `trim` after each batch.
    """

    def __init__(self, book: DomainBook, remembered: int) -> None:
        self._book = book
        self._remembered = remembered
        self._sizes: dict[int, dict[EngineHash, Node]] = {}
        self._released: dict[Node, int] = {}
        self._extra_keys_seen = False
        self.conflicts = 0
        self.made = 0

    def __len__(self) -> int:
        return sum(len(nodes) for nodes in self._sizes.values())

    def clear(self) -> None:
        """A new engine life: its hashes mean something else."""
        self._sizes.clear()
        self._released.clear()
        self._extra_keys_seen = False

    def of_size(self, block_tokens: int) -> dict[EngineHash, Node]:
        """The nodes of one block size; only to be read."""
        return self._sizes.setdefault(block_tokens, {})

    def find_all(self, name: EngineHash) -> list[tuple[int, Node]]:
        """Its nodes under every block size."""
        return [(size, nodes[name]) for size, nodes in self._sizes.items() if name in nodes]

    def use(self, node: Node) -> None:
        """One more holder and group has a copy."""
        if not node.uses:
            self._released.pop(node, None)
        node.uses += 1

    def release(self, node: Node, block_tokens: int) -> None:
        """One holder and group less has a copy."""
        node.uses -= 1
        if not node.uses:
            self._released[node] = block_tokens

    def trim(self) -> None:
        """Forget the hashes that lost their last copy longest ago, if there are too many."""
        released = self._released
        if len(released) <= 2 * self._remembered:
            return
        for node in list(islice(released, len(released) - self._remembered)):
            size = released.pop(node)
            nodes = self._sizes.get(size, {})
            if nodes.get(node.hash) is node:
                del nodes[node.hash]
                if not nodes:
                    del self._sizes[size]

    def census(self) -> int:
        """Nodes alive: those of the map, and those before them in their chains. Begins to count `made` anew."""
        self.made = 0
        seen: set[Node] = set()
        for nodes in self._sizes.values():
            for node in nodes.values():
                at: Node | None = node
                while at is not None and at not in seen:
                    seen.add(at)
                    at = at.parent
        return len(seen)

    def chains(self) -> set[Chain]:
        """Chains that some hash of the map belongs to."""
        return {
            node.chain for nodes in self._sizes.values() for node in nodes.values() if node.chain is not None
        }

    def unname(self, gone: Callable[[Chain], bool]) -> None:
        """The hashes of these chains have no ids any more, nor will what follows them; the tables first."""
        for nodes in self._sizes.values():
            for node in nodes.values():
                if node.chain is not None and gone(node.chain):
                    node.block, node.parent, node.chain, node.unassigned = b"", None, None, True

    def identify(self, event: BlockStored) -> list[Node]:
        """Nodes of an aligned store's hashes, in order; what can't be traced to a root has no id.

        A hash that is known keeps its meaning; one that contradicts it counts in `conflicts`.
        """
        size = event.block_size
        nodes = self._sizes.setdefault(size, {})
        parent: Node | None = None
        unassigned = False
        chain: Chain | None = None
        if event.parent is not None:
            parent = nodes.get(event.parent)
            if parent is not None:
                chain, unassigned = parent.chain, parent.unassigned
        elif self._readable(event):
            first = event.extra_keys[0] if event.extra_keys else NO_EXTRA_KEYS
            if not first.unrecognised:
                chain = self._book.chain_of(first.salt, _adapter(event), size)
                unassigned = chain is None
        if chain is not None and (chain.adapter != _adapter(event) or not self._readable(event)):
            chain = None
        extras, count = _extras(event.extra_keys, len(event.hashes))
        if chain is None or (event.hashes and not count):
            return [self._without_id(size, name, unassigned) for name in event.hashes]
        self.made += count
        tokens = event.tokens[: count * size * TOKEN_SIZE_BYTES]
        ids = chain.hasher.chain(chain.root if parent is None else parent.block, tokens, size, extras)
        found: list[Node] = []
        for name, block in zip(event.hashes, ids, strict=False):
            node = nodes.get(name)
            if node is None or node.block != block:
                if node is not None and node.block:
                    self.conflicts += 1
                node = nodes[name] = Node(name, block, parent, chain)
                self._released[node] = size
            found.append(node)
            parent = node
        found.extend(self._without_id(size, name, False) for name in event.hashes[len(ids) :])
        return found

    def look_up(self, block_tokens: int, hashes: Iterable[EngineHash]) -> list[Node]:
        """Nodes of hashes that come without usable tokens: known from elsewhere, or without id."""
        return [self._without_id(block_tokens, name, False) for name in hashes]

    def _without_id(self, block_tokens: int, name: EngineHash, unassigned: bool) -> Node:
        nodes = self._sizes.setdefault(block_tokens, {})
        node = nodes.get(name)
        if node is None:
            self.made += 1
            node = nodes[name] = Node(name, b"", None, None, unassigned)
            self._released[node] = block_tokens
        return node

    def _readable(self, event: BlockStored) -> bool:
        """Whether the event says what else is in the hash. An engine that does so once does it always: where
        it is left out later, a salt or an image may hide."""
        if event.extra_keys is not None:
            self._extra_keys_seen = True
            return True
        return not self._extra_keys_seen


def _adapter(event: BlockStored) -> str | None:
    if event.lora_name is not None:
        return event.lora_name
    return None if event.lora_id is None else f"lora_id:{event.lora_id}"


def _extras(keys: tuple[ExtraKeys, ...] | None, blocks: int) -> tuple[list[bytes] | None, int]:
    """(bytes to hash per block or None if there are none, how many blocks from the first on are understood)."""
    if keys is None:
        return None, blocks
    extras: list[bytes] | None = None
    for index, key in enumerate(keys):
        if key is NO_EXTRA_KEYS:
            continue
        if key.unrecognised or any(abs(offset) > _MAX_OFFSET for _, offset in key.mm):
            return extras, index
        if key.mm or key.prompt_embeds is not None:
            if extras is None:
                extras = [b""] * len(keys)
            embeds = () if key.prompt_embeds is None else (key.prompt_embeds.hex(),)
            extras[index] = Extra(modality=key.mm, prompt_embeds=embeds).to_bytes()
    return extras, len(keys)
