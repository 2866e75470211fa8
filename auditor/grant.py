"""What a key may say, by its newest grant; written apart from the index's registry."""

from __future__ import annotations

from dataclasses import dataclass

from events.ids import Role
from events.model.control import (
    ControlBody,
    ExitAttested,
    Granted,
    HolderDestroyed,
    HolderEncrypted,
    HolderEnrolled,
    Registered,
)


@dataclass(slots=True)
class KeyGrant:
    """`binding` is None for a key that may speak of everybody, else the workers and the stores it may speak of."""

    public_key: bytes
    roles: frozenset[Role]
    revoked_at: int | None = None
    binding: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    before: frozenset[Role] = frozenset()

    @property
    def held(self) -> frozenset[Role]:
        """`roles`, and those that older grants gave the key."""
        return self.roles | self.before

    @classmethod
    def of(cls, body: Granted, known: KeyGrant | None) -> KeyGrant:
        """`known` is what the key was granted before."""
        free = body.workers is None and body.stores is None
        binding = None if free else (body.workers or (), body.stores or ())
        before = known.held if known is not None else frozenset()
        return cls(body.public_key, frozenset(body.roles), binding=binding, before=before)

    def reaches(self, body: ControlBody | None) -> bool:
        """Whether its binding allows the record. None is one that is shown by its header alone: whoever is shown the
        registry decides, a report names keys and requests only."""
        if self.binding is None or body is None:
            return True
        workers, stores = self.binding
        if isinstance(body, Registered | ExitAttested):
            return _lists(workers, body.worker)
        if isinstance(body, HolderEnrolled):
            return _lists(workers, body.owner) and _lists(stores, body.durable_id)
        return isinstance(body, HolderDestroyed | HolderEncrypted) and _lists(stores, body.durable_id)


def _lists(patterns: tuple[str, ...], name: str) -> bool:
    exact = {one for one in patterns if one[-1:] != "*"}
    return name in exact or any(name.startswith(one[:-1]) for one in patterns if one not in exact)
