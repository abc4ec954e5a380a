"""How an episode is laid out as token ids, and where the policy's own tokens are.

With our tokenizer::

    <|task|>prompt<|act|>command<|end|><|obs|>observation<|act|>command<|end|> ...

The policy writes ``command<|end|>``; everything else is context. An empty command ends the
episode. For a foreign model (``--model PATH``) the same shape is taken from its chat template.

Special tokens are placed by id and every text is encoded as ordinary text, so that nothing a
sandbox prints can forge a turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from venusrl.policy.tokenizer import ACT, END, OBS, TASK, encode_ordinary

# Stand-ins that no chat template alters; the template is cut apart where they stand.
_USER, _REPLY, _NEXT = "venus-user-text", "venus-assistant-text", "venus-next-text"

_INSTRUCTION = (
    "You act in a Linux shell. Answer with exactly one shell command and nothing else. "
    "An empty answer ends the work.\n\n"
)


class Conversation(Protocol):
    """Turns texts into the context tokens around the policy's own tokens."""

    stop_token_ids: tuple[int, ...]

    def start(self, prompt: str) -> list[int]:
        """Tokens up to the place where the first command is generated."""

    def observe(self, observation: str | bytes) -> list[int]:
        """Tokens between a finished command and the place of the next one."""

    def command(self, token_ids: Sequence[int]) -> str:
        """The command that the policy's tokens of one turn spell."""


@dataclass(frozen=True)
class NativeConversation:
    """The layout of our own tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    task_id: int
    act_id: int
    obs_id: int
    end_id: int

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return (self.end_id,)

    def start(self, prompt: str) -> list[int]:
        return [self.task_id, *encode_ordinary(self.tokenizer, prompt), self.act_id]

    def observe(self, observation: str | bytes) -> list[int]:
        return [self.obs_id, *encode_ordinary(self.tokenizer, observation), self.act_id]

    def write(self, command: str) -> list[int]:
        """The tokens by which the policy would say ``command`` (for demonstrations)."""
        return [*encode_ordinary(self.tokenizer, command), self.end_id]

    def command(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


@dataclass(frozen=True)
class ChatConversation:
    """The layout of a foreign model, read off its chat template once."""

    tokenizer: PreTrainedTokenizerBase
    before_prompt: tuple[int, ...]
    before_reply: tuple[int, ...]
    after_reply: tuple[int, ...]
    stop_token_ids: tuple[int, ...]

    def start(self, prompt: str) -> list[int]:
        text = encode_ordinary(self.tokenizer, _INSTRUCTION + prompt)
        return [*self.before_prompt, *text, *self.before_reply]

    def observe(self, observation: str | bytes) -> list[int]:
        text = encode_ordinary(self.tokenizer, observation)
        return [*self.after_reply, *text, *self.before_reply]

    def command(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True)).strip()


def conversation_for(tokenizer: PreTrainedTokenizerBase) -> NativeConversation | ChatConversation:
    """The layout that fits ``tokenizer``: ours if it has our special tokens, else its template."""
    vocabulary = tokenizer.get_vocab()
    if all(token in vocabulary for token in (TASK, ACT, OBS, END)):
        return NativeConversation(
            tokenizer,
            task_id=vocabulary[TASK],
            act_id=vocabulary[ACT],
            obs_id=vocabulary[OBS],
            end_id=vocabulary[END],
        )
    return _from_chat_template(tokenizer)


def _from_chat_template(tokenizer: PreTrainedTokenizerBase) -> ChatConversation:
    if not tokenizer.chat_template:
        raise ValueError(
            f"choose a conversation layout for {tokenizer.name_or_path!r}: the tokenizer has "
            "neither this project's special tokens nor a chat template"
        )

    def render(*messages: tuple[str, str]) -> str:
        turns: list[dict[str, Any]] = [{"role": r, "content": c} for r, c in messages]
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    one = render(("user", _USER))
    two = render(("user", _USER), ("assistant", _REPLY), ("user", _NEXT))
    before_prompt, before_reply = one.split(_USER)
    # The policy's turn ends in the stop token, which its own tokens already hold.
    after_reply = two.split(_REPLY)[1].split(_NEXT)[0]
    eos = str(tokenizer.eos_token)
    if after_reply.startswith(eos):
        after_reply = after_reply[len(eos) :]

    def special(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False))

    return ChatConversation(
        tokenizer,
        before_prompt=special(before_prompt),
        before_reply=special(before_reply),
        after_reply=special(after_reply),
        stop_token_ids=(int(tokenizer.eos_token_id),),
    )
