"""`kvledger receipt verify`: check offline that an order was taken, from the receipt and one public key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvledger.failure import CommandError, ExitCode

MAX_RECEIPT = 65_536
ANOTHER_BUNDLE = (
    "give the bundle that `kvledger audit run --request NUMBER --bundle` wrote for the receipt's request"
)


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Receipts of deletion requests and other orders.")
    group.command("verify")(verify)
    app.add_typer(group, name="receipt")


def verify(
    receipt: Annotated[
        Path, typer.Argument(help="what POST /v1/deletions or `delete --receipt` gave, as a file")
    ],
    key: Annotated[str, typer.Option(help="public key that signs orders: 64 hex characters or a file")],
    bundle: Annotated[Path | None, typer.Option(help="a proof that is to be about the same request")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Verify a receipt offline. With --bundle also that the proof is about the very record of the receipt; the proof
    itself is checked by `kvledger audit verify`. Exit code 4 if the receipt proves nothing, or another request.

    Example: kvledger receipt verify receipt.json --key .kvledger/keys/control.pub --bundle proof.jsonl
    """
    from pydantic import ValidationError

    from auditor.proof import BundleError, unseal
    from events.receipt import Receipt
    from kvledger.command.proof_file import public_key_of, read_file

    public_key = public_key_of(key, "--key", "receipt verify")
    try:
        raw = receipt.read_bytes()
    except OSError as error:
        raise CommandError(
            f"{receipt} can't be read: {error.strerror}",
            advice="kvledger receipt verify --help",
            exit_code=ExitCode.USAGE,
        ) from error
    try:
        if len(raw) > MAX_RECEIPT:
            raise _invalid(f"{receipt} is no receipt: it has {len(raw)} bytes")
        given = Receipt.model_validate_json(raw)
    except ValidationError as error:
        raise _invalid(f"{receipt} is no receipt ({error.errors(include_input=False)[0]['type']})") from error
    if not given.holds(public_key):
        raise _invalid(
            f"{receipt} is not signed by this key (it names key {given.signer})",
            "give the key of who signs orders, keys/control.pub; kvledger key list shows which key has that id",
        )
    if bundle is not None:
        shown = read_file(bundle)
        try:
            statement = json.loads(unseal(shown.partition(b"\n")[0])[1])
            about = statement["subject"][0]["digest"]["sha256"]
        except (BundleError, ValueError, KeyError, IndexError, TypeError) as error:
            raise _invalid(f"{bundle} is no bundle ({type(error).__name__})", ANOTHER_BUNDLE) from error
        if about != given.record_sha256:
            raise _invalid(f"{bundle} is about another request than this receipt", ANOTHER_BUNDLE)
    if as_json:
        typer.echo(given.model_dump_json())
    else:
        typer.echo(
            f"order {given.request} ({given.kind}) is in log {given.log}, by the word of key {given.signer}"
        )
        typer.echo(f"its record's SHA-256 is {given.record_sha256}")


def _invalid(
    message: str, advice: str = "ask for the receipt again with the same Idempotency-Key"
) -> CommandError:
    return CommandError(message, advice=advice, exit_code=ExitCode.BUNDLE_INVALID)
