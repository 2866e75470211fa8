"""What an engine is asked: prompts with shared prefixes of several tenants, as if many used it."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from tests.live.engine import LiveEngine
from tests.live.tiny_model import FIRST_WORD, VOCABULARY

Prompt = tuple[tuple[int, ...], str]
"""Tokens and domain."""

FAMILIES = 5
"""Shared prefixes of each domain."""
PREFIX_WORDS = (40, 320)
OWN_WORDS = (1, 120)
OUTPUTS = (1, 32)
REPEATED = 0.15
"""Of the requests: a former prompt once more."""
LEFT = 0.04
"""Of the requests: the caller goes away while it runs."""
LEFT_AFTER_S = (0.05, 0.4)
AT_ONCE = 16
"""Unanswered; whoever comes then is sent away, and counted."""
RECENT = 300


@dataclass(frozen=True, slots=True)
class Request:
    """`failure` is empty for status 200, and for a caller who went away."""

    began_s: float
    ended_s: float
    left: bool
    failure: str


class Load:
    """Requests at random moments, `rate` a second, whether or not earlier ones are answered, at most 16 at once;
    until stopped. The same seed asks the same."""

    def __init__(
        self, engine: LiveEngine, salts: Mapping[str, str | None], *, seed: int, rate: float
    ) -> None:
        self.requests: list[Request] = []
        self.sent_away = 0
        self._engine = engine
        self._salts = salts
        self._rate = rate
        self._random = random.Random(f"{seed}/{engine.name}")
        self._domains = list(salts)
        self._prefixes = {
            domain: [self._words(PREFIX_WORDS) for _ in range(FAMILIES)] for domain in self._domains
        }
        self._recent: deque[Prompt] = deque(maxlen=RECENT)
        self._lock = threading.Condition()
        self._open: dict[int, float] = {}
        self._paused = False
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last request has been answered."""
        self._stopped.set()
        self._thread.join()
        self._pool.shutdown()

    def pause(self) -> None:
        """Returns when nothing runs any more."""
        with self._lock:
            self._paused = True
            self._lock.wait_for(lambda: not self._open)
        # Who went away was not answered, but the engine has to notice.
        self._engine.drained()

    def resume(self) -> None:
        with self._lock:
            self._paused = False

    def retire(self, domain: str) -> None:
        """Nothing is asked in that domain any more; returns when nothing of it runs."""
        with self._lock:
            self._domains.remove(domain)
            began = set(self._open)
            self._lock.wait_for(lambda: not began.intersection(self._open))
        # Of one whose caller went away nothing is left in the queue once the engine has done what came later.
        self._engine.complete([FIRST_WORD])

    def recent(self) -> list[Prompt]:
        """The newest prompts, the newest last, each once."""
        with self._lock:
            return list(dict.fromkeys(self._recent))

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(self._random.expovariate(self._rate)):
            with self._lock:
                if self._paused:
                    continue
                if len(self._open) >= AT_ONCE:
                    self.sent_away += 1
                    continue
                tokens, domain = self._next()
                left_s = self._random.uniform(*LEFT_AFTER_S) if self._random.random() < LEFT else None
                outputs = self._random.randint(*OUTPUTS)
                number += 1
                self._open[number] = time.monotonic()
                self._recent.append((tokens, domain))
            self._pool.submit(self._ask, number, tokens, domain, outputs, left_s)

    def _next(self) -> Prompt:
        if self._recent and self._random.random() < REPEATED:
            prompt = self._random.choice(list(self._recent))
            if prompt[1] in self._domains and len(prompt[0]) < 512:
                return prompt
        domain = self._random.choice(self._domains)
        prefix = self._random.choice(self._prefixes[domain])
        return (*prefix, *self._words(OWN_WORDS)), domain

    def _ask(
        self, number: int, tokens: Sequence[int], domain: str, outputs: int, left_s: float | None
    ) -> None:
        began_s = self._open[number]
        failure = ""
        whole: Sequence[int] = ()
        try:
            if left_s is None:
                whole = self._engine.complete(tokens, salt=self._salts[domain], outputs=outputs)
            else:
                self._engine.leave(tokens, left_s, salt=self._salts[domain])
        except httpx.HTTPStatusError as error:
            failure = f"status {error.response.status_code}"
        except (httpx.HTTPError, ValueError, LookupError) as error:
            failure = f"{type(error).__name__}: {error}"
        request = Request(began_s, time.monotonic(), left_s is not None, failure)
        with self._lock:
            self.requests.append(request)
            if whole:
                self._recent.append((tuple(whole), domain))
            del self._open[number]
            self._lock.notify_all()

    def _words(self, between: tuple[int, int]) -> tuple[int, ...]:
        return tuple(
            self._random.randrange(FIRST_WORD, VOCABULARY) for _ in range(self._random.randint(*between))
        )
