"""A real vLLM server in a process group of its own, on the tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from events.hooks.agent_wire import SOCKET_VARIABLE

BLOCK = 32
MODEL = "tiny"
START_S = 900.0
"""A crowded machine takes minutes where an idle one takes half of one."""
HIT_METRIC = re.compile(r"^vllm:prefix_cache_hits(?:_total)?\{[^}]*\} (\S+)$", re.MULTILINE)
ASKED_METRIC = re.compile(r"^vllm:prefix_cache_queries(?:_total)?\{[^}]*\} (\S+)$", re.MULTILINE)
RUNNING_METRIC = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", re.MULTILINE)
PREEMPTED_METRIC = re.compile(r"^vllm:num_preemptions(?:_total)?\{[^}]*\} (\S+)$", re.MULTILINE)


def free_port(count: int = 1) -> int:
    """The first of so many ports in a row that nobody has."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for more in range(1, count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + more))
            except OSError:
                continue
            return port


class LiveEngine:
    """`with LiveEngine(…) as engine: engine.complete([...])`. `agent`: the path of its agent's socket, or None for
    an engine that nobody has touched. `options` are more of the server's own; with `ranks` each has an event and
    a replay socket of its own, at the first one's port plus its number. `developed`: with the routes of
    VLLM_SERVER_DEV_MODE. `module` is what is run instead of vLLM's server."""

    def __init__(
        self,
        python: Path,
        model: Path,
        folder: Path,
        name: str,
        *,
        agent: Path | None = None,
        blocks: int = 96,
        ranks: int = 1,
        options: Sequence[str] = ("--load-format", "dummy"),
        developed: bool = True,
        module: str = "vllm.entrypoints.openai.api_server",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.agent = agent
        self.ranks = ranks
        self.model = model
        self.developed = developed
        self.event_port, self.replay_port, self.port = free_port(ranks), free_port(ranks), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.endpoint = f"tcp://127.0.0.1:{self.event_port}"
        self.replay = f"tcp://127.0.0.1:{self.replay_port}"
        self.log = folder / f"{name}.log"
        # A connection of its own for each request: the server closes idle ones, also when one is just being used.
        self._http = httpx.Client(
            timeout=120, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._process: subprocess.Popen[bytes] | None = None
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.event_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
            "topic": f"kv@{name}@{MODEL}",
        }
        self._command = [str(python), "-m", module, "--model", str(model), "--served-model-name", MODEL]
        self._command += ["--dtype", "float32", "--enable-prefix-caching", *options]
        self._command += ["--block-size", str(BLOCK), "--num-gpu-blocks-override", str(blocks)]
        self._command += [
            "--max-model-len",
            "1024",
            "--max-num-seqs",
            "8",
            "--max-num-batched-tokens",
            "1024",
        ]
        self._command += ["--enforce-eager", "--kv-events-config", json.dumps(events)]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port)]
        if ranks > 1:
            self._command += ["--data-parallel-size", str(ranks)]
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONHASHSEED", "VLLM_SERVER_DEV_MODE", SOCKET_VARIABLE)
            and not name.startswith("KVLEDGER_")
        } | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            **({"VLLM_SERVER_DEV_MODE": "1"} if developed else {}),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # Without an agent the plugin isn't even loaded.
            "VLLM_PLUGINS": "kvledger" if agent is not None else "",
            **({SOCKET_VARIABLE: str(agent)} if agent is not None else {}),
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        if self._process is None:
            self.launch()
        self.serving()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)
        self._http.close()

    def start(self) -> None:
        """Starts the server and waits until it serves."""
        self.launch()
        self.serving()

    def launch(self) -> None:
        """Starts the server, which takes a while until it serves."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def serving(self) -> None:
        """Waits until it serves."""
        deadline_s = time.monotonic() + START_S
        while True:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: see {self.log}")
            try:
                if self._http.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.name} doesn't serve: see {self.log}")
            time.sleep(0.25)

    def stop(self, number: signal.Signals) -> None:
        """Sends the signal to the server (SIGTERM) or to all of its processes, and waits for their end."""
        process, self._process = self._process, None
        if process is None:
            return
        if number is signal.SIGTERM:
            process.send_signal(number)
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def restart(self, number: signal.Signals) -> None:
        self.stop(number)
        self.start()

    def complete(
        self,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        outputs: int = 1,
        adapter: str | None = None,
        rank: int | None = None,
        **more: Any,
    ) -> list[int]:
        """Runs a prompt of token ids; returns all tokens whose KV was computed, as far as they are known."""
        body = {"model": adapter or MODEL, "prompt": list(tokens), "max_tokens": outputs, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, **more}
        if salt is not None:
            body["cache_salt"] = salt
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        answer = self._http.post(f"{self.url}/v1/completions", json=body, headers=headers)
        answer.raise_for_status()
        made = answer.json()["choices"][0].get("token_ids") or []
        return [*tokens, *made]

    def order(self, path: str, **body: Any) -> str:
        """Posts to a route of its administration: what it answered, and whether that was a refusal."""
        answer = self._http.post(f"{self.url}{path}", json=body or None)
        if answer.status_code == 200:
            return "done"
        return f"refused: {answer.status_code}"

    def reset(self) -> bool:
        """Whether the engine reset its prefix cache."""
        answer = self._http.post(f"{self.url}/reset_prefix_cache")
        try:
            return bool(answer.json().get("success", answer.status_code == 200))
        except ValueError:
            return answer.status_code == 200

    def delivered(self, tokens: Sequence[int], **more: Any) -> int:
        """Sends a prompt; how many of its tokens were a hit, by `vllm:prefix_cache_hits`."""
        hits, asked = self._metric(HIT_METRIC), self._metric(ASKED_METRIC)
        self.complete(tokens, **more)
        deadline_s = time.monotonic() + 10
        while self._metric(ASKED_METRIC) < asked + len(tokens):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.name} doesn't count its prompts")
            time.sleep(0.01)
        return self._metric(HIT_METRIC) - hits

    def abort(self, tokens: Sequence[int], after_s: float) -> None:
        """Sends a long request and goes away while it runs; returns when the engine has ended it."""
        self.leave(tokens, after_s)
        self.drained()

    def leave(self, tokens: Sequence[int], after_s: float, *, salt: str | None = None) -> None:
        """Sends a long request and goes away while it runs."""
        body = {"model": MODEL, "prompt": list(tokens), "max_tokens": 900, "ignore_eos": True}
        if salt is not None:
            body["cache_salt"] = salt
        with contextlib.suppress(httpx.TimeoutException):
            self._http.post(f"{self.url}/v1/completions", json=body, timeout=after_s)

    def processes(self) -> list[int]:
        """The pids of the server's process group; empty when it doesn't run."""
        if self._process is None or self._process.poll() is not None:
            return []
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                if int(entry.read_text().rpartition(")")[2].split()[2]) == self._process.pid:
                    found.append(int(entry.parent.name))
        return found

    def running(self) -> int:
        """Requests that run or wait."""
        return self._metric(RUNNING_METRIC)

    def drained(self) -> None:
        """Waits until no request runs or waits."""
        deadline_s = time.monotonic() + 60
        while self.running():
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.name} doesn't come to rest")
            time.sleep(0.05)

    def preemptions(self) -> int:
        return self._metric(PREEMPTED_METRIC)

    def _metric(self, pattern: re.Pattern[str]) -> int:
        text = self._http.get(f"{self.url}/metrics").text
        return int(sum(float(value) for value in pattern.findall(text)))
