"""Profiles' digests, block ids, salts: what makes two engines' blocks the same, computable in any language.

Golden vectors are in `tests/golden/block_ids.json`. RFC 8785 (JCS), RFC 7693 (keyed BLAKE2b).
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import rfc8785

from events.errors import IdentityError
from events.ids import BlockId, ProfileId
from events.model.profile import ContentProfile

SALT_PREFIX = "kvl1."
MAX_TOKEN = (1 << 32) - 1


def profile_digest(profile: ContentProfile) -> ProfileId:
    """Hex SHA-256 of the profile's RFC 8785 JSON, every field present (null where unknown or absent), but
    `approximate` only where it is true."""
    document = profile.model_dump(mode="json")
    if document["approximate"] is None:
        del document["approximate"]
    return ProfileId(hashlib.sha256(rfc8785.dumps(document)).hexdigest())


def root_parent(profile: ProfileId) -> BlockId:
    """First 128 bits of the profile's digest: the parent of every chain's block 0."""
    return BlockId(bytes.fromhex(profile[:32]))


@dataclass(frozen=True, slots=True)
class Extra:
    """What besides tokens determines a block: modality items as (id, offset), prompt-embedding digests."""

    modality: tuple[tuple[str, int], ...] = ()
    prompt_embeds: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Empty for a plain text block, else RFC 8785 JSON of {"mm": [[id, offset]…], "pe": […]}."""
        if not self.modality and not self.prompt_embeds:
            return b""
        return rfc8785.dumps({"mm": [list(item) for item in self.modality], "pe": list(self.prompt_embeds)})


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Token ids as u32 little endian. Raises IdentityError for anything that is no u32."""
    try:
        packed = array("I", token_ids)
    except (OverflowError, TypeError, ValueError) as error:
        raise IdentityError("token ids are whole numbers from 0 to 4294967295") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class BlockHasher:
    """Block ids under one domain's id key; the keyed state is made once and copied for each block."""

    __slots__ = ("_keyed",)

    def __init__(self, id_key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=id_key, digest_size=16)

    def block_id(self, parent: bytes, tokens: bytes, extra: bytes = b"") -> BlockId:
        """BLAKE2b-128 over parent (16 bytes), then tokens (u32 LE) and extra, each after its length (u32 LE)."""
        state = self._keyed.copy()
        state.update(
            parent + len(tokens).to_bytes(4, "little") + tokens + len(extra).to_bytes(4, "little") + extra
        )
        return BlockId(state.digest())

    def chain(
        self, parent: bytes, tokens: bytes, block_tokens: int, extras: Sequence[bytes] | None = None
    ) -> list[bytes]:
        """Ids of all whole blocks of packed `tokens`, in order; a partial last block has none.

        `extras`, if given, has one entry per whole block. Raises IdentityError if it hasn't.
        """
        size = block_tokens * 4
        whole = len(tokens) // size
        if extras is not None and len(extras) < whole:
            raise IdentityError(f"{len(extras)} extras for {whole} blocks")
        head = size.to_bytes(4, "little")
        no_extra = (0).to_bytes(4, "little")
        copy = self._keyed.copy
        ids: list[bytes] = []
        for index in range(whole):
            state = copy()
            extra = extras[index] if extras is not None else b""
            tail = len(extra).to_bytes(4, "little") + extra if extra else no_extra
            state.update(parent + head + tokens[index * size : (index + 1) * size] + tail)
            parent = state.digest()
            ids.append(parent)
        return ids


def make_salt(salt_key: bytes, domain: str) -> str:
    """The `cache_salt` that names a domain: `kvl1.<domain>.<MAC>`, MAC = first 32 hex of HMAC-SHA256."""
    mac = hmac.new(salt_key, f"kvledger salt v1|{domain}".encode(), hashlib.sha256).hexdigest()[:32]
    return f"{SALT_PREFIX}{domain}.{mac}"


def salt_domain(salt: str) -> str | None:
    """The domain that a salt of ours claims, its MAC unchecked; None for a foreign salt."""
    if not salt.startswith(SALT_PREFIX):
        return None
    domain, dot, _ = salt[len(SALT_PREFIX) :].rpartition(".")
    return domain if dot and domain else None


def salt_holds(salt_key: bytes, salt: str) -> bool:
    """Whether the salt is the one made for its domain under this key; constant time."""
    domain = salt_domain(salt)
    return domain is not None and hmac.compare_digest(salt.encode(), make_salt(salt_key, domain).encode())


def bound_salt_hmac(salt_key: bytes, salt: str) -> bytes:
    """What a `salt_bound` record stores for a gateway's own salt: never the salt itself."""
    return hmac.new(salt_key, b"kvledger bound salt v1|" + salt.encode(), hashlib.sha256).digest()
