"""A verdict as the commands print it, and the exit code that each kind is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvledger.failure import ExitCode
from kvledger.wording import counted

if TYPE_CHECKING:
    from auditor.finding import Verdict
    from auditor.proof import Predicate

EXIT_CODES = {
    "PROVEN": ExitCode.OK,
    "REFUTED": ExitCode.REFUTED,
    "UNPROVABLE": ExitCode.UNPROVABLE,
    "PENDING": ExitCode.PENDING,
}
SHOWN_REASONS = 12


def print_verdict(verdict: Verdict, stated: Predicate | None = None) -> None:
    """`stated` is the proof's own statement, where there is one: it says on whose word an exit rests."""
    from auditor.paper.answer import answer_line
    from auditor.paper.element import visible
    from auditor.paper.legal_hold import hold_notices

    typer.echo(f"request {verdict.request} ({verdict.scope.type}): {verdict.kind.value}")
    standing = " ".join(f"{name}:{value}" for name, value in verdict.conditions.items())
    typer.echo(f"  conditions  {standing}")
    for one in verdict.counterexamples:
        typer.echo(f"  ! {one.what}")
        typer.echo(
            f"    {one.worker}/{one.rank}/{one.epoch} record {one.seq} (kv.events/{one.partition}@{one.offset})"
        )
    for notice in hold_notices(stated.holds if stated is not None else ()):
        typer.echo(visible(f"  {notice.title}: {notice.text}"))
    for reason in verdict.reasons[:SHOWN_REASONS]:
        waits = ", waiting" if reason.waits else ""
        typer.echo(f"  {reason.condition} {reason.reason.value}{waits}: {reason.subject}: {reason.detail}")
        typer.echo(f"     cure: {reason.cure}")
    if len(verdict.reasons) > SHOWN_REASONS:
        more = counted(len(verdict.reasons) - SHOWN_REASONS, "more reason")
        typer.echo(f"  … and {more} (--json shows all)")
    for holder in verdict.holders:
        where = f"{holder.worker}/{holder.rank}/{holder.holder}"
        typer.echo(visible(f"  holder {where}: {answer_line(verdict, holder, stated)}"))
    ended = ("removed", "cleared", "died", "evicted", "rejected", "recreated")
    typer.echo("  copies " + ", ".join(f"{name} {getattr(verdict, name)}" for name in ended))
    for assumption in verdict.assumptions:
        typer.echo(f"  assumes {assumption}")
