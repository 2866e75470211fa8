"""How long a real engine's steps are, without the agent, with it, and while it removes a whole tenant.

`python -m tests.benchmarks.step_time --venv .venv-vllm`: four requests decode all the while on the tiny model; the
agent is asked five times a second, as a bridge asks it for each pulse.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from events.hooks.agent_client import AgentClient
from tests.live.engine import LiveEngine
from tests.live.steps import read_steps
from tests.live.tiny_model import FIRST_WORD, VOCABULARY, write_model
from tests.live.truth import HashTap

SERVER = "tests.live.timed_server"
DECODERS = 4
OUTPUTS = 700
PULSE_S = 0.2
AT_ONCE = 512
ROOT = Path(__file__).parents[2]


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]


def steps(file: Path, after: int = 0) -> list[float]:
    """Step times in ms, from the entry `after` on."""
    return [1_000 * step.took_s for step in read_steps(file, after)]


def summary(name: str, times: Sequence[float]) -> dict[str, object]:
    ordered = sorted(times)
    return {
        "case": name,
        "steps": len(ordered),
        "median_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
        "max_ms": round(ordered[-1], 3),
    }


class Asked:
    """What the agent is asked beside the load: pulses, and at times a tenant's removal."""

    def __init__(self, client: AgentClient) -> None:
        self.client = client
        self.removed = 0
        self.seconds = 0.0

    async def pulses(self) -> None:
        for mark in itertools.count():
            assert await self.client.confirm(mark, 10) is not None
            await asyncio.sleep(PULSE_S)

    async def remove(self, hashes: Sequence[bytes]) -> None:
        """In the portions in which a bridge asks for it."""
        began_s = time.monotonic()
        for start in range(0, len(hashes), AT_ONCE):
            word = await self.client.remove(hashes[start : start + AT_ONCE], 1 << 40, 60)
            assert word is not None
            self.removed += word.removed
        self.seconds = time.monotonic() - began_s


async def load(engine: LiveEngine, rng: random.Random) -> None:
    """Decodes on all slots to the end."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(DECODERS) as pool:
        prompts = [words(rng, 40) for _ in range(DECODERS)]
        jobs = [
            loop.run_in_executor(pool, functools.partial(engine.complete, prompt, outputs=OUTPUTS))
            for prompt in prompts
        ]
        await asyncio.gather(*jobs)


async def measure(engine: LiveEngine, file: Path, rng: random.Random, asked: Asked | None, name: str) -> None:
    await load(engine, rng)
    before = len(steps(file))
    pulses = asyncio.create_task(asked.pulses()) if asked is not None else None
    for _ in range(3):
        await load(engine, rng)
    if pulses is not None:
        pulses.cancel()
        await asyncio.gather(pulses, return_exceptions=True)
    print(json.dumps(summary(name, steps(file, before))), flush=True)


async def measure_removal(
    engine: LiveEngine, file: Path, rng: random.Random, asked: Asked, blocks: int
) -> None:
    """A tenant of so many blocks is removed while four requests decode."""
    tap = HashTap(engine)
    prompts = [words(rng, 992) for _ in range(-(-blocks // 31))]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(DECODERS) as pool:
        jobs = [
            loop.run_in_executor(pool, functools.partial(engine.complete, prompt, salt="doomed"))
            for prompt in prompts
        ]
        await asyncio.gather(*jobs)
    deadline_s = time.monotonic() + 30
    while sum(len(tap.chain(prompt, "doomed")) for prompt in prompts) < 31 * len(prompts):
        assert time.monotonic() < deadline_s, "not all hashes were told"
        await asyncio.sleep(0.1)
    hashes = [name for prompt in prompts for name in tap.chain(prompt, "doomed")]
    tap.stop()
    running = asyncio.create_task(load(engine, rng))
    while not engine.running():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    pulses = asyncio.create_task(asked.pulses())
    before = len(steps(file))
    await asked.remove(hashes)
    after = steps(file, before)
    pulses.cancel()
    await asyncio.gather(running, pulses, return_exceptions=True)
    row = summary("agent, while a tenant is removed", after)
    print(json.dumps(row | {"removed": asked.removed, "removal_s": round(asked.seconds, 3)}), flush=True)


async def run(python: Path, blocks: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kvl-step-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        model = write_model(folder / "model")
        for agent in (None, folder / "agent.sock"):
            file = folder / ("with" if agent else "without")
            file.touch()
            environment = {"STEP_TIMES": str(file), "PYTHONPATH": str(ROOT)}
            rng = random.Random(1)
            with LiveEngine(
                python,
                model,
                folder,
                "timed",
                agent=agent,
                blocks=blocks + 2_000,
                module=SERVER,
                environment=environment,
            ) as engine:
                if agent is None:
                    await measure(engine, file, rng, None, "without agent")
                    continue
                client = AgentClient(str(agent))
                assert await client.connect(10)
                asked = Asked(client)
                await measure(engine, file, rng, asked, "agent, asked five times a second")
                await measure_removal(engine, file, rng, asked, blocks)
                client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--venv", type=Path, required=True, help="the virtual environment with vLLM (.ci/vllm)"
    )
    parser.add_argument("--blocks", type=int, default=10_000, help="of the tenant that is removed")
    arguments = parser.parse_args()
    asyncio.run(run((arguments.venv / "bin" / "python").absolute(), arguments.blocks))


if __name__ == "__main__":
    main()
