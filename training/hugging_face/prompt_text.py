"""The text that a language model was trained to find around a history, as tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from genrec.errors import ArtifactError, InputError
from genrec.files import read_json

HISTORY, CODES = "{history}", "{codes}"
ACCEPTED = (
    f'JSON: "text" with {HISTORY} once; optional "item" with {CODES} once, "separator", and "special_tokens",'
    " false where the text has its own"
)


@dataclass(frozen=True)
class PromptText:
    """How a prompt is written: `separator` stands between items, `special_tokens` are those of the tokenizer."""

    text: str
    item: str = CODES
    separator: str = ""
    special_tokens: bool = True

    @classmethod
    def load(cls, path: Path) -> PromptText:
        """Read a JSON file. Raises InputError."""
        try:
            raw = read_json(path)
            wrong = sorted(set(raw) - {each.name for each in fields(cls)})
            if wrong:
                raise InputError(f"{path}, {wrong[0]}", "is no field of a prompt", ACCEPTED)
            prompt = cls(**raw)
            if not isinstance(prompt.special_tokens, bool) or not isinstance(prompt.separator, str):
                raise TypeError("separator is no text, or special_tokens neither true nor false")
            for part in (prompt.text, prompt.item, prompt.separator):
                part.encode()  # half of a surrogate pair, which JSON may have, is no text
            for field, hole in (("text", HISTORY), ("item", CODES)):
                if getattr(prompt, field).count(hole) != 1:
                    raise InputError(f"{path}, {field}", f"has {hole} not once", ACCEPTED)
        except (ArtifactError, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise InputError(str(path), f"is not a readable prompt: {error}", ACCEPTED) from error
        return prompt

    def of(self, items: list[str]) -> str:
        """The prompt of items, each written as its codes' tokens."""
        history = self.separator.join(self.item.replace(CODES, item) for item in items)
        return self.text.replace(HISTORY, history)


class PromptTokens(NamedTuple):
    """Tokens ahead of the first item, between items, and behind the last."""

    before: list[int]
    between: list[int]
    after: list[int]

    def around(self, items: list[list[int]]) -> list[int]:
        """The whole prompt of items, each as its tokens."""
        found = [*self.before, *items[0]]
        for item in items[1:]:
            found += [*self.between, *item]
        return found + self.after


def prompt_tokens(
    tokenizer: Tokenizer, prompt: PromptText, examples: list[tuple[str, list[int]]], path: Path
) -> PromptTokens:
    """What the tokenizer makes of the text around three items of the catalogue, each given as its text and its tokens.

    Read off whole prompts, because how a text is cut depends on what stands beside it. Raises InputError naming `path`
    where it is not cut alike around all items.
    """

    def tokens(many: int) -> list[int]:
        text = prompt.of([text for text, _ in examples[:many]])
        return tokenizer.encode(text, add_special_tokens=prompt.special_tokens).ids

    (_, first), (_, second), _ = examples
    one, two = tokens(1), tokens(2)
    start = _place(one, first)
    after = one[start + len(first) :] if start >= 0 else []
    tail = len(two) - len(after) - len(second)
    found = PromptTokens(one[: max(start, 0)], two[start + len(first) : tail], after)
    alike = all(found.around([item for _, item in examples[:n]]) == tokens(n) for n in (1, 2, 3))
    if start < 0 or not alike:
        problem = f"is cut into other tokens around some items than around others, {examples[0][0]!r} say"
        raise InputError(str(path), problem, "a text that stays the same whatever the items and their number")
    return found


def _place(tokens: list[int], part: list[int]) -> int:
    """Where `part` begins in `tokens`; -1 if nowhere."""
    places = range(len(tokens) - len(part) + 1)
    return next((place for place in places if tokens[place : place + len(part)] == part), -1)
