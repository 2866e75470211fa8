"""Block ids of a prompt that somebody names by its tokens, under every profile that fits. Tokens go no further."""

from __future__ import annotations

from collections.abc import Sequence

from events.errors import IdentityError
from events.identity import pack_tokens, root_parent
from indexer.service.body import fail
from router_client.answer import UNDECLARED
from router_client.problem import ProblemKind
from router_client.view import LocalView

FORBIDDEN = "no such scope for this caller"


def prompt_chains(
    view: LocalView, *, where: str, domain: str, profile: str, adapter: str | None, token_ids: Sequence[int]
) -> dict[tuple[str, int], list[bytes]]:
    """By (profile id, tokens of a block): ids of the prompt's whole blocks, in order, at least one each.

    `profile` is a profile's id or a model's name. Raises ProblemError, naming fields below `where`: 403 without the
    domain's keys, 404 if nobody declared such a profile, 400 for tokens that make no block.
    """
    keys = view.keyring.get(domain)
    if keys is None:
        raise fail(ProblemKind.FORBIDDEN, FORBIDDEN, field=where)
    try:
        tokens = pack_tokens(token_ids)
    except IdentityError as error:
        raise fail(ProblemKind.MALFORMED, str(error), field=f"{where}.token_ids") from error
    chains: dict[tuple[str, int], list[bytes]] = {}
    for stream in view.streams.values():
        for declared in stream.profiles(keys):
            content = declared.content
            if profile != declared.id and (content.model, content.adapter) != (profile, adapter):
                continue
            for holder in stream.state.holders.values():
                for group in holder.groups.values():
                    if (declared.id, group.block_tokens) not in chains:
                        chains[declared.id, group.block_tokens] = keys.hasher().chain(
                            root_parent(declared.id), tokens, group.block_tokens
                        )
    if not chains:
        raise fail(ProblemKind.PROFILE_UNKNOWN, UNDECLARED, field=f"{where}.profile")
    found = {place: chain for place, chain in chains.items() if chain}
    if not found:
        raise fail(ProblemKind.MALFORMED, "shorter than one block", field=f"{where}.token_ids")
    return found
