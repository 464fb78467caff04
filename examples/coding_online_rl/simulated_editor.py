"""Plays users of an editor: they ask for completions, run their tests, and accept or reject.

    python simulated_editor.py RUN_FOLDER USERS THINK_SECONDS

The users know of a run what any client does, the address and the key in its `endpoint.json`; and
from its `config.yaml` which code they work on. They go when standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp
from omegaconf import OmegaConf

from rlinf.config import validate_cfg
from rlinf.data.prompts import PromptStream, training_prompts
from rlinf.data.reasoning import Prompt
from rlinf.data.tokenizer import tokenizer_of_run
from rlinf.workers.reward.scorer import Scorer

_LOOK_SECONDS = 0.2


class Users:
    """Users of one endpoint, who share a list of things to do.

    Args:
        folder: of the run.
        cfg: its configuration.
        endpoint: what its `endpoint.json` says.
        think_seconds: pause of a user between two requests.
    """

    def __init__(
        self, folder: Path, cfg: Any, endpoint: dict[str, str], think_seconds: float
    ) -> None:
        self._endpoint, self._think_seconds = endpoint, think_seconds
        tokenizer = tokenizer_of_run(cfg)
        self._work = PromptStream(training_prompts(cfg, tokenizer).prompts)
        self._judge = Scorer(cfg.reward)
        self._judge.wait_ready()
        self._log = open(folder / "users.jsonl", "a", buffering=1)

    async def work(self, number: int) -> None:
        """Play all users until they are cancelled or the endpoint has gone."""
        headers = {"Authorization": f"Bearer {self._endpoint['key']}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            await asyncio.gather(*(self._user(client) for _ in range(number)))

    async def _user(self, client: aiohttp.ClientSession) -> None:
        while True:
            (prompt,) = self._work.take(1)
            session = uuid.uuid4().hex
            begin = time.monotonic()
            fact: dict[str, Any] = {"failed": True}
            try:
                answer = await self._ask(client, prompt, session)
                seconds = time.monotonic() - begin
                choice = answer["choices"][0]
                accepted = await self._accepts(choice["text"], prompt)
                await self._tell(client, session, accepted)
                fact = {"accepted": accepted, "seconds": round(seconds, 4)}
                fact |= {"versions": sorted(set(choice["versions"])), "text": choice["text"]}
            except aiohttp.ClientConnectorError:
                return  # The endpoint has been closed.
            except (aiohttp.ClientError, RuntimeError) as error:
                fact["error"] = str(error)
            self._log.write(json.dumps(fact) + "\n")
            await asyncio.sleep(self._think_seconds)

    async def _ask(self, client: aiohttp.ClientSession, prompt: Prompt, session: str) -> Any:
        body = {"model": self._endpoint["model"], "prompt": prompt.text, "return_token_ids": True}
        headers = {"X-RLinf-Session": session}
        return await self._post(client, "/completions", body, headers)

    async def _accepts(self, completion: str, prompt: Prompt) -> bool:
        """Run the user's tests on the completed code."""
        outcome = await self._judge.score(completion, prompt)
        return outcome.status == "ok" and outcome.value["score"] >= 1

    async def _tell(self, client: aiohttp.ClientSession, session: str, accepted: bool) -> None:
        path = f"/sessions/{session}/reward"
        await self._post(client, path, {"reward": float(accepted)}, {})

    async def _post(
        self, client: aiohttp.ClientSession, path: str, body: Any, headers: dict[str, str]
    ) -> Any:
        url = self._endpoint["url"] + path
        async with client.post(url, json=body, headers=headers) as response:
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {await response.text()}")
            return await response.json()

    def close(self) -> None:
        """End the processes that judge."""
        self._judge.close()
        self._log.close()


async def main(folder: Path, number: int, think_seconds: float) -> None:
    """Wait for the endpoint of a run, and play users until standard input ends."""
    leaving = asyncio.ensure_future(_end_of_input())
    while not (folder / "endpoint.json").exists():
        await asyncio.wait({leaving}, timeout=_LOOK_SECONDS)
        if leaving.done():
            return
    cfg = validate_cfg(OmegaConf.load(folder / "config.yaml"))
    endpoint = json.loads((folder / "endpoint.json").read_text())
    users = Users(folder, cfg, endpoint, think_seconds)
    working = asyncio.ensure_future(users.work(number))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        leaving.cancel()
        users.close()


async def _end_of_input() -> None:
    """Wait for the end of standard input; in no thread, which could not be left."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            ended.set()

    loop.add_reader(0, read)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
