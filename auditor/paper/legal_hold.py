"""Legal holds on a paper: what stands in the way of a deletion, who put it there, and how it ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from auditor.paper.element import Notice, moment
from auditor.paper.wording import Meaning
from auditor.proof import HoldStated

HELD_HEADLINE = "Pending: a legal hold forbids the removal."
HELD_SENTENCE = (
    "The request was taken and the data is hidden from use, but as long as the hold below stands no holder removes "
    "anything for it. That is intended, and no fault of a worker. After the release the removal goes on by itself; run "
    "the audit again then."
)
HELD = Meaning(
    "A legal hold stands on it",
    "These holders have not removed the data because a legal hold forbids it for now.",
    "Nothing, as long as the hold is meant to stand. Whoever may release it does so; then wait and audit again.",
)


def standing(holds: Sequence[HoldStated] | None) -> list[HoldStated]:
    return [one for one in holds or () if one.released_at is None]


def hold_notices(holds: Sequence[HoldStated] | None) -> Iterator[Notice]:
    """One box for each hold that stands."""
    for one in standing(holds):
        text = (
            f"It stands on {place(one)}. Reason: {one.reason or 'none given'}. Placed by {one.placed_by} on "
            f"{moment(one.written_ms)} by the writer's clock (register {one.offset}, signed with key {one.signer}). "
            f"It ends when an operator releases it, with `kvledger hold release {one.hold}` or over REST; waiting "
            "doesn't end it."
        )
        yield Notice(f"Legal hold {one.hold}", text, "waiting")


def place(hold: HoldStated) -> str:
    if hold.domain is not None:
        return f"domain {hold.domain}"
    return f"every domain of tenant {hold.tenant}"


def hold_moments(holds: Sequence[HoldStated] | None) -> Iterator[tuple[int, int, str, str]]:
    """(register position, milliseconds, what, concerns) of every placing and release."""
    for one in holds or ():
        yield (
            one.offset,
            one.written_ms,
            "a legal hold was placed",
            f"{one.hold} on {place(one)}, by {one.placed_by}",
        )
        if one.released_at is not None:
            yield (
                one.released_at,
                one.released_ms or 0,
                "a legal hold was released",
                f"{one.hold}, by {one.released_by}",
            )


def holds_in_words(holds: Sequence[HoldStated] | None) -> str:
    """For the request's facts."""
    if holds is None:
        return "not stated"
    told = [
        f"{one.hold}: stands" if one.released_at is None else f"{one.hold}: released at {one.released_at}"
        for one in holds
    ]
    return "; ".join(told) or "none"
