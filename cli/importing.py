"""`genrec import`: an artifact of a checkpoint that others trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.options import at_least, folder, names, of_options
from genrec.words import command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two folders, what the items are, and how the model was asked in training."""
    parser.add_argument("source", type=folder, help="a Hugging Face folder of a Qwen2, Qwen3 or Llama")
    parser.add_argument("artifact", type=folder, help="the new artifact folder, e.g. artifacts/minionerec")
    parser.add_argument(
        "--items", type=Path, required=True, help="CSV or Parquet: item, title; or JSON {item: {title}}"
    )
    parser.add_argument(
        "--semantic-ids",
        type=Path,
        required=True,
        help='JSON {item: ["<a_1>", ...]}, or CSV: item, code_1, ...',
    )
    parser.add_argument("--prompt", type=Path, help="JSON: the text around a history; default: codes alone")
    parser.add_argument(
        "--interactions", type=Path, help="for histories to evaluate on: user, item, timestamp"
    )
    parser.add_argument(
        "--item-tokens",
        type=Path,
        help="what a ranker reads for an item: JSON {item: [73, ...]}, or CSV: item, token_1, ...;"
        " default: its semantic ID",
    )
    parser.add_argument(
        "--code-tokens",
        type=names,
        help="how each level spells a code; default: as the semantic IDs, or <a_{}>,...",
    )
    parser.add_argument(
        "--max-history",
        type=at_least(1),
        help="items that a prompt has at most; default: 50, or as many as the model has positions for",
    )


def run(a: argparse.Namespace) -> None:
    """Do it, and say what came of it."""
    from training.hugging_face.checkpoint import import_checkpoint

    with of_options(a, "items", "semantic_ids", "prompt", "interactions", "item_tokens"):
        notes = import_checkpoint(
            a.source, a.artifact, a.items, a.semantic_ids, a.prompt, a.interactions, a.code_tokens, a.max_history,
            a.item_tokens,
        )  # fmt: skip
    print("\n".join(f"  {note}" for note in notes))
    print(f"imported; {command('export', a.artifact)} and {command('build', a.artifact)} make it servable")
