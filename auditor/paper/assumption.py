"""Assumptions of a verdict in plain words, with the auditor's own text kept behind. Pure."""

from __future__ import annotations

import re

_WORDS: tuple[tuple[str, str], ...] = (
    (
        r"membership: self-declared",
        "Who belongs to the fleet is the fleet's own word: every worker that registered had to answer, and nobody "
        "outside has said that there are no others.",
    ),
    (
        r"membership: inventory of (\d+) by (.*) \(kv\.control/(\d+)\)",
        "Who belongs to the fleet is the word of {1}, which named {0} members at position {2} of the register.",
    ),
    (
        r"member (.*), named by (.*) \(kv\.control/(\d+)\), is gone by the word of kv\.control/(\d+)",
        "{0}, whom {1} named as a member and who never registered, never ran or has ended: a supervisor says so at "
        "position {3} of the register.",
    ),
    (
        r"anchoring: none.*",
        "Nothing outside binds the log: that nobody has rewritten it as a whole is not shown.",
    ),
    (
        r"anchoring: checkpoint.*",
        "The log is sealed by the auditor alone: that he has not sealed another one as well is his word.",
    ),
    (
        r"anchoring: witnessed (\d+) of (\d+).*",
        "{0} of {1} outside witnesses have countersigned the log. That they don't all conspire is assumed.",
    ),
    (
        r"workers tell the truth in what they sign",
        "The workers tell the truth in what they sign. One that lies about its own memory is not found out, where the "
        "lie contradicts nothing else.",
    ),
    (
        r"(.*): no statement yet about (.*)",
        "Worker {0} has not counted yet what is in {1}: what lies there is known from its records of single blocks "
        "alone.",
    ),
    (
        r"(.*): its statements are derived from its records, not from the pool",
        "Worker {0} counts from its own records and doesn't look into its memory: what the one has missed, the other "
        "has missed too.",
    ),
    (
        r"(.*) encrypts as declared; its keys were never anywhere but in rings (.*)",
        "Store {0} keeps what it holds encrypted as its owner declared, and its keys were never anywhere but in {1}.",
    ),
    (
        r"what lies before the newest records was read by an earlier audit of this auditor",
        "The older part of the log was read by an earlier audit of the same auditor and was not read again.",
    ),
)


def assumption_in_words(text: str) -> str:
    """A sentence, and the text that stands in the signed statement; that alone where there are no words for it."""
    for pattern, words in _WORDS:
        found = re.fullmatch(pattern, text, re.DOTALL)
        if found is not None:
            return f"{words.format(*found.groups())} ({text})"
    return text
