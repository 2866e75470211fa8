"""Lookups all the while, each held against what the engine has said at the moment that the answer speaks of."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from tests.live.endurance.history import Doubt
from tests.live.endurance.load import Load, Prompt
from tests.live.endurance.wire_history import WireHistory
from tests.live.index import Found, Index

EVERY_S = 0.2
SETTLED_S = 5.0
"""An answer is judged when what the engine said at its time has surely been heard."""
SLACK_S = 0.1
"""Between a change in the engine, the stamp on its event, and the clocks of two processes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked of one engine and said; `as_of_s` None: it wasn't answered, for `found.why`."""

    asked_s: float
    answered_s: float
    engine: str
    found: Found
    as_of_s: float | None


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that was never true in the time that it speaks of."""

    at_s: float
    engine: str
    doubt: Doubt
    blocks: int
    basis: str
    staleness_s: float


class Asker:
    """Asks five times a second for one of the newest prompts, of each engine in turn."""

    def __init__(
        self,
        index: Index,
        loads: Mapping[str, Load],
        histories: Mapping[str, WireHistory],
        salts: Mapping[str, str | None],
        seed: int,
    ) -> None:
        self.answers: list[Answer] = []
        self.wrong: list[Wrong] = []
        self.judged = 0
        self.blocks = 0
        self._index = index
        self._loads = loads
        self._histories = histories
        self._salts = salts
        self._random = random.Random(f"{seed}/asker")
        self._hidden: set[str] = set()
        self._open: deque[tuple[Answer, Prompt]] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Judges what is left."""
        self._stopped.set()
        self._thread.join()
        while self._open:
            self._judge(*self._open.popleft())

    def hide(self, domain: str) -> None:
        """Its copies are being deleted: no answer about them can be judged by the engine from here on."""
        self._hidden.add(domain)

    def known(self, name: str, since_s: float) -> bool:
        """Whether an engine is answered for as of a moment after `since_s`."""
        answer = self._ask(name)
        return answer is not None and answer[0].as_of_s is not None and answer[0].as_of_s > since_s

    def reasons(self, answers: Sequence[Answer]) -> dict[str, int]:
        """Why nothing was said, and how often."""
        return dict(Counter(one.found.why for one in answers if one.as_of_s is None))

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            name = self._random.choice(list(self._loads))
            asked = self._ask(name)
            if asked is not None:
                self.answers.append(asked[0])
                self._open.append(asked)
            while self._open and self._open[0][0].answered_s < time.monotonic() - SETTLED_S:
                self._judge(*self._open.popleft())

    def _ask(self, name: str) -> tuple[Answer, Prompt] | None:
        recent = [prompt for prompt in self._loads[name].recent()[-100:] if prompt[1] not in self._hidden]
        if not recent:
            return None
        prompt = self._random.choice(recent)
        asked_s = time.monotonic()
        try:
            found, as_of_s = self._index.asked(name, *prompt)
        except httpx.HTTPError as error:
            found, as_of_s = Found(0, 0, None, complete=False, why=type(error).__name__), None
        return Answer(asked_s, time.monotonic(), name, found, as_of_s), prompt

    def _judge(self, answer: Answer, prompt: Prompt) -> None:
        if answer.as_of_s is None or prompt[1] in self._hidden:
            return
        tokens, domain = prompt
        history = self._histories[answer.engine]
        chain = history.chain(tokens, self._salts[domain])
        doubt = history.history.judge(
            chain, answer.found.blocks, answer.as_of_s - SLACK_S, answer.answered_s + SLACK_S
        )
        self.judged += 1
        self.blocks += len(tokens) // 32
        # A holder that isn't wholly known is credited with what is certain, and says that it is a floor.
        if doubt is Doubt.TOO_LITTLE and not answer.found.complete:
            return
        if doubt is not Doubt.NONE:
            staleness_s = answer.asked_s - answer.as_of_s
            self.wrong.append(
                Wrong(
                    answer.answered_s,
                    answer.engine,
                    doubt,
                    answer.found.blocks,
                    answer.found.basis or "",
                    staleness_s,
                )
            )
