"""Options of the command line: settings, and kinds of values that say what they accept."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from genrec.catalogue.semantic_id import MOST_LEARNT, check_sizes
from genrec.catalogue.typed import split_names
from genrec.errors import ArtifactError, InputError
from genrec.manifest import outdated
from genrec.rank.options import MOST_CANDIDATES, USUAL_CANDIDATES
from genrec.settings import MAX_DEADLINE_MS, accepted, chosen_fields

PROTOCOL = "grpc"


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """An option for each of these settings, as the fields of `genrec.settings.Settings` describe them."""
    for each in chosen_fields():
        if each.name in names:
            one_of = each.metadata["one_of"]
            told = [each.metadata["help"], *([] if one_of else [accepted(each)])]
            told += [f"default: {each.default}"] if each.default != "" else []
            parser.add_argument(
                f"--{each.name.replace('_', '-')}",
                type=type(each.default),
                default=each.default,
                choices=one_of or None,
                help="; ".join(told),
            )


def check_read(model: str, given: Mapping[str, object], read_by: Mapping[str, Sequence[str]]) -> None:
    """Raises InputError for an option that was given, where `read_by` does not say that the model reads it."""
    for option, models in read_by.items():
        if given[option] and model not in models:
            limit = f"for {', '.join(models)} alone"
            raise InputError(option.replace("_", "-"), f"is given for {model}, which does not read it", limit)


def tell_outdated(artifact: Path) -> None:
    """Where what answers is of an earlier model, and which commands make it anew."""
    if note := outdated(artifact):
        print(note, file=sys.stderr)


@contextmanager
def of_options(a: argparse.Namespace, *options: str) -> Iterator[None]:
    """An error about a file that one of these options names, or about a file of such a folder, names the option too."""
    try:
        yield
    except (InputError, ArtifactError) as error:
        about = error.field if isinstance(error, InputError) else error.path
        named = ((option, str(getattr(a, option))) for option in options if getattr(a, option))
        for option, path in named:
            if about == path or about.startswith((f"{path}, ", f"{path}/")):
                field = f"{option.replace('_', '-')}, {about}"
                if isinstance(error, InputError):
                    raise InputError(field, error.problem, error.limit) from error
                raise ArtifactError(field, error.problem) from error
        raise


def sizes(text: str) -> tuple[int, ...]:
    """Codebook sizes T_1,...,T_L to learn."""
    try:
        return check_sizes(numbers(text), MOST_LEARNT)
    except InputError as error:
        raise _refused(text, error.limit) from error


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between; none of an empty text."""
    try:
        return [int(each) for each in text.split(",")] if text else []
    except ValueError as error:
        raise _refused(text, "whole numbers as 1,2,3") from error


def names(text: str) -> tuple[str, ...]:
    """Names with commas between."""
    found = tuple(text.split(","))
    if not all(found):
        raise _refused(text, "names with commas between")
    return found


def groups(text: str) -> list[str]:
    """Names of groups of items with commas between."""
    try:
        return split_names(text, "groups")
    except InputError as error:
        raise _refused(text, error.limit) from error


def counts(text: str) -> dict[str, int]:
    """Names with counts, as `encode_history=2,decode=2`."""
    limit = "model=count with commas between, each model once, as encode_history=2,decode=2"
    pairs = [each.partition("=") for each in text.split(",")]
    try:
        found = {name: int(count) for name, _, count in pairs}
    except ValueError as error:
        raise _refused(text, limit) from error
    if len(found) < len(pairs):
        raise _refused(text, limit)
    return found


def at_least(low: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """A whole number of `low` to `most`."""

    def read(text: str) -> int:
        limit = (
            f"a whole number, {low} to {most}" if most < 2**63 - 1 else f"a whole number of at least {low}"
        )
        try:
            number = int(text)
        except ValueError as error:
            raise _refused(text, limit) from error
        if not low <= number <= most:
            raise _refused(text, limit)
        return number

    return read


def positive(text: str, most: float = math.inf) -> float:
    """A number above 0, of minutes say."""
    limit = "a number above 0" if most == math.inf else f"a number above 0, at most {most:g}"
    try:
        number = float(text)
    except ValueError as error:
        raise _refused(text, limit) from error
    if not 0 < number <= most or number == math.inf:
        raise _refused(text, limit)
    return number


def seconds(text: str) -> float:
    """That something may take, at most a day: sockets wait no longer than some 290 years."""
    return positive(text, 86_400)


def add_artifact(parser: argparse.ArgumentParser) -> None:
    """The folder that most verbs work on."""
    parser.add_argument("artifact", type=folder, help="the artifact folder, e.g. artifacts/ml-100k")


def add_device(parser: argparse.ArgumentParser, what: str) -> None:
    """Where torch computes; `what` it does there."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help=f"what {what}; cuda: a GPU; default: cpu"
    )


def add_question(parser: argparse.ArgumentParser, user: str) -> None:
    """Who is asked about whose history, and for how many items; `user` says what is taken of a user."""
    add_artifact(parser)
    add_server(parser)
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "--history", default="", help="item ids, or keys of items.parquet, oldest first, e.g. 50,172,1"
    )
    whose.add_argument("--user", help=f"{user}: his id, or as the source spells him")
    add_top_k(parser)
    parser.add_argument(
        "--deadline-ms",
        type=at_least(1, MAX_DEADLINE_MS),
        help=f"with --url: after so long the server gives up, 1 to {MAX_DEADLINE_MS}",
    )


def add_top_k(parser: argparse.ArgumentParser) -> None:
    """How many items are answered."""
    parser.add_argument("--top-k", type=int, default=10, help="how many items; default: %(default)s")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Which server is asked, if one is."""
    parser.add_argument("--url", help="host:port of a server; without it the local runtime answers")
    add_protocol(parser, "with --url; ")


def add_protocol(parser: argparse.ArgumentParser, when: str = "") -> None:
    """How a server is asked."""
    told = f"{when}default: %(default)s"
    parser.add_argument("--protocol", choices=("grpc", "http"), default=PROTOCOL, help=told)


def add_retrieve(parser: argparse._ActionsContainer, what: str) -> None:
    """How many items the generator finds to be ranked: `what` says so. None: the usual number, or what is allowed."""
    parser.add_argument(
        "--retrieve",
        type=at_least(1, MOST_CANDIDATES),
        help=f"{what}, at most the beam width and {MOST_CANDIDATES}; default: {USUAL_CANDIDATES}, "
        "or as many as beam width and catalogue allow",
    )


def check_where(a: argparse.Namespace, local: Sequence[str]) -> None:
    """Raises InputError for what would be left unread: settings `local` with --url, a deadline or HTTP without it."""
    if not a.url and getattr(a, "deadline_ms", None) is not None:
        raise InputError("deadline-ms", "is given without --url", "a server; the local runtime keeps none")
    if not a.url and a.protocol != PROTOCOL:
        raise InputError("protocol", f"is {a.protocol} without --url", "a server; the local runtime has none")
    if a.url:
        check_unset(a, local, "--url")


def check_unset(a: argparse.Namespace, settings: Sequence[str], beside: str) -> None:
    """Raises InputError for one of these settings of a server that is given with an option for one that runs."""
    for each in chosen_fields():
        if each.name in settings and getattr(a, each.name) != each.default:
            limit = "nothing; the server was started with its own"
            raise InputError(each.name.replace("_", "-"), f"is given with {beside}", limit)


def folder(text: str) -> Path:
    """A folder, there already or not."""
    path = Path(text)
    try:
        is_other = path.exists() and not path.is_dir()
    except (OSError, ValueError) as error:  # a name too long, say
        raise _refused(text, f"the name of a folder: {error}") from error
    if is_other or not text:
        raise _refused(text, "a folder, there already or not; this is a file" if is_other else "a folder")
    return path


def _refused(text: str, limit: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"is {text!r} (accepted: {limit})")
