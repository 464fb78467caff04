"""From a worked solution to tokens, and which of them the model learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.agents.templates import ChatFormat
from rlinf.agents.tools.solution_writer import SolutionWriter
from rlinf.data.datasets.base import Message
from rlinf.data.prompt_encoder import PromptEncoder
from rlinf.data.tokenizer import tokens_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SolutionEncoder:
    """Turns a worked solution into the tokens of an episode that goes that way.

    Args:
        tokenizer: What `load_tokenizer` returns.
        prompts: Encodes the prompts that solutions follow.
        writer: Writes calls of tools and their answers; None without tools.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: PromptEncoder,
        writer: SolutionWriter | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts, self._writer = prompts, writer

    def encode(
        self, solution: str | list[Message], prompt: str | list[Message]
    ) -> tuple[list[int], list[bool]]:
        """Return the tokens of a worked solution, with the end token, and which are learnt.

        Args:
            solution: See `Record.solution`.
            prompt: That it follows; with a chat template, what is between two answers of the model
                may depend on it.

        Raises:
            ValueError: Text that cannot be encoded, or messages that are no solution.
        """
        written = self.written(solution)
        chat = self._prompts.chat
        if chat is not None and not self._goes_on(written):
            return self._of_template(chat, written, self._prompts.messages(prompt) or [])
        ids: list[int] = []
        learnt: list[bool] = []
        for message in written:
            part = self._ids(message)
            if message.get("ends"):
                part = [*part, self._tokenizer.eos_token_id]
            ids += part
            learnt += [message["role"] == "assistant"] * len(part)
        return [*ids, self._tokenizer.eos_token_id], [*learnt, True]

    def written(self, solution: str | list[Message]) -> list[Message]:
        """Return the messages of a worked solution, calls and answers in the format of the run.

        Args:
            solution: See `Record.solution`.

        Raises:
            ValueError: There are calls, and no format.
        """
        if isinstance(solution, str):
            return [{"role": "assistant", "content": solution}]
        return [each for message in solution for each in self._written(message)]

    def _written(self, message: Message) -> list[Message]:
        """Return what becomes of a message; several answers may be a message each."""
        if "content" in message:
            return [message]
        if self._writer is None:
            raise ValueError(
                "a worked solution calls tools, which are those of agents; set runner.task_type to "
                "agent and agentloop.tools to these tools, or use other data"
            )
        if "calls" in message:
            return [{"role": "assistant", "content": self._writer.calls(message["calls"])}]
        return self._writer.answers(message["answers"])

    def _goes_on(self, solution: list[Message]) -> bool:
        """Return whether tools answer in the text of the model, of which no template knows.

        Raises:
            ValueError: They do, and others speak too.
        """
        roles = [message["role"] for message in solution]
        if "tool" not in roles or self._writer is None or not self._writer.inline:
            return False
        if roles[0] != "assistant" or roles[-1] != "assistant" or {*roles} - {"assistant", "tool"}:
            raise ValueError(
                f"a worked solution has messages of the roles {', '.join(roles)}: where tools "
                "answer in the text, it is of the roles assistant and tool, and the first and the "
                "last one are of the role assistant"
            )
        return True

    def _of_template(
        self, chat: ChatFormat, solution: list[Message], said: list[Message]
    ) -> tuple[list[int], list[bool]]:
        """Return what the chat template makes of a solution, turn by turn, as an agent reads it."""
        roles = [message["role"] for message in solution]
        if roles[:1] != ["assistant"] or roles[-1] != "assistant":
            raise ValueError(
                f"a worked solution has messages of the roles {', '.join(roles)}: with a chat "
                "template the first and the last one are of the role assistant"
            )
        ids: list[int] = []
        learnt: list[bool] = []
        place = 0
        while place < len(solution):
            own, place = solution[place], place + 1
            part = self._ids(own)
            ids += [*part, self._tokenizer.eos_token_id]
            learnt += [True] * (len(part) + 1)
            begin = place
            while place < len(solution) and roles[place] != "assistant":
                place += 1
            new = solution[begin:place]
            if place < len(solution):
                further = chat.between(said, own, new, ended=True)
                ids, learnt = [*ids, *further], [*learnt, *[False] * len(further)]
            said = [*said, own, *new]
        return ids, learnt

    def _ids(self, message: Message) -> list[int]:
        return tokens_of(self._tokenizer, message["content"], add_special_tokens=False)
