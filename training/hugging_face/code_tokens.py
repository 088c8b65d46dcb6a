"""Codes as a language model spells them, `<a_12>` or `<s_b_7>`, and where its vocabulary has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular, read_json
from training.data.tokenise import EVERY_ITEM, SEMANTIC_IDS, code_of, lists_of, rows_of_items

TOKENIZER = "tokenizer.json"
HOLE = "{}"  # where a template has the code
TEMPLATES = "a template for every level with {} for the code, as <a_{}>,<b_{}>,<c_{}>"


def read_tokenizer(folder: Path) -> Tokenizer:
    """`folder`/tokenizer.json, without the cuts and the padding that a training left in it. Raises ArtifactError."""
    path = folder / TOKENIZER
    if not path.exists():
        advice = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes it"
        raise ArtifactError(path, f"is missing; {advice}")
    try:
        tokenizer = Tokenizer.from_file(str(check_regular(path)))
    except Exception as error:  # the library raises bare Exceptions
        raise ArtifactError(path, f"is not a readable tokenizer: {error}") from error
    for token in read_json(path).get("added_tokens", []):
        # The library gives them numbers as they come; where those are others, it would say nothing.
        number = tokenizer.token_to_id(token["content"])
        if number != token["id"]:
            problem = f"gives {token['content']!r} the ID {token['id']}, which collides or leaves some out"
            raise ArtifactError(path, f"{problem}: it is {number}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_codes(
    path: Path, keys: Sequence[str], templates: tuple[str, ...] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Published semantic IDs of n items, by their keys: codes int32[n, L], and how a token of each level is spelled.

    Where the file has tokens and not numbers, they say how, and all must say the same; numbers alone are taken to be
    those of `<a_{}>`, `<b_{}>`, .... Raises InputError.
    """
    given: dict[str, list[int]] = {}
    for place, key, parts in rows_of_items(path):
        if not isinstance(parts, list) or not parts:
            raise InputError(str(path), f"{place} has no list of codes", SEMANTIC_IDS)
        templates = check_templates(templates or [_template(str(part), n) for n, part in enumerate(parts)])
        if len(parts) != len(templates):
            raise InputError(str(path), f"{place} has {len(parts)} codes, not {len(templates)}", SEMANTIC_IDS)
        try:
            given[key] = [_code(str(part), form) for part, form in zip(parts, templates, strict=True)]
        except ValueError as error:
            raise InputError(str(path), f"{place}: {error}", SEMANTIC_IDS) from error
    return lists_of(given, keys, path, EVERY_ITEM).astype(np.int32), templates or ()


def check_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """One for each level, each with one hole. Raises InputError."""
    if not templates or any(template.count(HOLE) != 1 or template == HOLE for template in templates):
        raise InputError("code_tokens", f"is {','.join(templates)!r}", TEMPLATES)
    return tuple(templates)


def _template(token: str, level: int) -> str:
    """`<a_12>` -> `<a_{}>`: the last number is the code. A number alone is of the usual letters."""
    parts = re.fullmatch(r"(.*?)\d+(\D*)", token, re.DOTALL)
    if parts is None or parts[1] + parts[2] == "":
        return f"<{chr(ord('a') + level)}_{HOLE}>"
    return f"{parts[1]}{HOLE}{parts[2]}"


def _code(token: str, template: str) -> int:
    if token.isascii() and token.isdigit():
        return code_of(token)
    found = _pattern(template).fullmatch(token)
    if found is None:
        raise ValueError(f"{token!r} is not a token {template}")
    return code_of(found[1])


def _pattern(template: str) -> re.Pattern[str]:
    before, _, after = template.partition(HOLE)
    return re.compile(f"{re.escape(before)}(0|[1-9][0-9]*){re.escape(after)}")


def code_rows(tokenizer: Tokenizer, templates: Sequence[str], path: Path) -> list[np.ndarray]:
    """Per level int64[T_l], the number of every code's token in the vocabulary, -1 where it has none.

    T_l is the highest code of the vocabulary plus one, so that codes keep the numbers they were published with.
    Raises ArtifactError naming `path`, the tokenizer's.
    """
    vocabulary, levels = tokenizer.get_vocab(with_added_tokens=True), []
    spelled: dict[int, str] = {}
    for level, template in enumerate(templates, 1):
        pattern = _pattern(template)
        found = {
            int(m[1]): (row, token) for token, row in vocabulary.items() if (m := pattern.fullmatch(token))
        }
        if not found:
            raise ArtifactError(
                path, f"has no token {template}, which level {level} of the semantic IDs needs"
            )
        if max(found) >= len(vocabulary):
            problem = f"has the token {found[max(found)][1]!r}, a code beyond its {len(vocabulary)} tokens"
            raise ArtifactError(path, problem)
        for row, token in found.values():
            other = spelled.setdefault(row, token)
            if other != token:
                raise ArtifactError(path, f"gives the tokens {other!r} and {token!r} the one ID {row}")
        rows = np.full(max(found) + 1, -1, np.int64)
        rows[list(found)] = [row for row, _ in found.values()]
        levels.append(rows)
    return levels


def check_items(
    codes: np.ndarray, keys: Sequence[str], templates: Sequence[str], rows: Iterable[np.ndarray], path: Path
) -> None:
    """Refuse items whose codes [n, L] the vocabulary lacks. Raises ArtifactError with the first of them."""
    for column, (template, there) in enumerate(zip(templates, rows, strict=True)):
        mine = codes[:, column]
        lacking = np.flatnonzero((mine >= len(there)) | (there[np.minimum(mine, len(there) - 1)] < 0))
        if len(lacking):
            first = int(lacking[0])
            token = template.replace(HOLE, str(mine[first]))
            raise ArtifactError(
                path, f"lacks the token {token!r}, of item {keys[first]!r} and {len(lacking) - 1} more"
            )
