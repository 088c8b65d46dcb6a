"""Rankings beside what people use: ways by counting, the generator alone, and peers that are not there."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cli.main import main
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.catalogue.load import load_catalogue
from genrec.engine.load import load_executors
from genrec.search.constraint import Constraint
from genrec.settings import Settings
from perf.peers.refusal import Refusal
from perf.rank import peers
from perf.rank.likelihood import beams_scored, by_likelihood
from perf.rank.mock_ranker import SHAPE
from perf.rank.peers import BOTH, HALF, LIKELIHOOD, SPLIT, Drawn, least_operations, least_ratio

NOBODY = Drawn(*np.zeros((3, 0), np.int32))


def test_half_the_layers_of_a_ranker_save_half_of_its_own_and_nothing_of_the_items():
    both, split = least_operations(BOTH, 528, []), least_operations(SPLIT, 528, [])
    assert 2 * least_operations(BOTH + HALF, 528, []) == both
    assert least_operations(SPLIT + HALF, 528, []) == split - both // 2
    assert least_operations("transformers", 528, []) == 0


def test_the_generator_alone_cannot_do_without_its_beams():
    one, two = (least_operations(LIKELIHOOD, 528, beams) for beams in ([1, 0], [2, 0]))
    layers, heads = SHAPE.num_hidden_layers, 4 * SHAPE.num_attention_heads * SHAPE.head_dim
    size = SHAPE.num_attention_heads * SHAPE.head_dim + SHAPE.num_key_value_heads * SHAPE.head_dim
    layer = SHAPE.hidden_size * (2 * size + 3 * SHAPE.intermediate_size)
    logits = 2 * SHAPE.hidden_size * SHAPE.codebook_sizes[1]
    assert 2 * one == two
    assert one == layers * (2 * layer + heads * 529) + logits


def test_candidates_are_ranked_by_their_likelihood_alone(tiny_ranker: Path, tmp_path: Path):
    config, rows = load_config(tiny_ranker), np.array([7, 2, 9, 30], np.int32)
    index, tokens = load_validity(tiny_ranker, config), np.arange(1, 13, dtype=np.int32) % config.vocab_size
    (all_items,) = load_executors(Settings(tiny_ranker, tiny_ranker, index.items), config)[0].answers(
        tokens[None].astype(np.int64), np.array([len(tokens)]), [Constraint(index)]
    )
    found = by_likelihood(tiny_ranker, tmp_path / "pool", tokens, rows)()
    assert found.nodes.tolist() == sorted(index.row_leaf[rows])
    scores = dict(zip(all_items.nodes.tolist(), all_items.scores.tolist(), strict=True))
    want = [scores[node] for node in found.nodes.tolist()]
    assert found.scores.tolist() == pytest.approx(want, abs=1e-5)


def test_the_beams_of_a_likelihood_lead_to_candidates_and_to_other_items(tiny_ranker: Path):
    config, rows = load_config(tiny_ranker), np.arange(0, 40, 3, dtype=np.int32)
    codes = load_catalogue(tiny_ranker, config).codes.tolist()
    whole, want = {tuple(row) for row in codes}, []
    for level in range(1, config.levels):
        starts = [path[:level] for path in whole]
        want.append(len({start for row in rows if starts.count(start := tuple(codes[row][:level])) > 1}))
    assert beams_scored(load_validity(tiny_ranker, config), rows) == want
    assert want[0] > 0


@pytest.mark.parametrize(
    "given", [["--peers", "vlm"], ["--prompts", "576,x"], ["--prompts", "0"], ["--prompts", "576,528"]]
)
def test_peers_and_prompts_are_known_before_models_are_made(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "rank_peers", "--folder", str(tmp_path), *given]) == 2
    assert f"{given[0][2:]}: is '{given[1]}' (accepted: " in capsys.readouterr().err


def test_a_peer_is_held_against_the_best_of_ours_where_that_is_worst():
    times = {10: {"a": 2.0, "b": 4.0, "peer": 8.0}, 20: {"a": 5.0, "b": 4.0, "peer": 12.0}}
    cells = [
        {"system": name, "prompt": span, "ms": ms} for span, of in times.items() for name, ms in of.items()
    ]
    assert least_ratio(cells, "peer", ("a", "b")) == 3.0
    assert least_ratio(cells, "peer", ("a",)) == 2.4
    assert least_ratio(cells, "another", ("a",)) is None, "it was not run"


def test_a_peer_that_cannot_be_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise Refusal("pip failed")

    monkeypatch.setattr(peers, "install", refuse)
    monkeypatch.setattr(peers, "load_layout", lambda *_: SimpleNamespace(kv_type="f32"))
    monkeypatch.setattr(peers.Drawn, "behind", lambda *_: NOBODY)
    monkeypatch.setattr(peers, "ours", lambda *_: dict.fromkeys(peers.WAYS, lambda: 1.0))
    asked = argparse.Namespace(peers="transformers", rounds=1, folder=tmp_path, envs=tmp_path)
    cells = peers.measure(tmp_path, tmp_path, asked, 528)
    assert {cell["system"] for cell in cells} == {*peers.WAYS}
    assert all(cell["ends"] == (1000, 1000) and cell["ms"] == 1000 for cell in cells)
    assert "transformers: pip failed" in capsys.readouterr().out


def test_peers_that_have_started_are_ended_with_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another one starts, which takes minutes."""
    stopped: list[str] = []

    class Peer:
        def __init__(self, name: str, *_: object) -> None:
            self.name = name

        def start(self, width: int) -> None:
            if self.name == "vllm":
                raise KeyboardInterrupt

        def ask(self, *_: object, **__: object) -> None:
            pass

        def stop(self) -> None:
            stopped.append(self.name)

    monkeypatch.setattr(peers, "peer_of", Peer)
    monkeypatch.setattr(peers.Drawn, "behind", lambda *_: NOBODY)
    monkeypatch.setattr(peers, "ours", lambda *_: dict.fromkeys(peers.WAYS, lambda: 1.0))
    asked = argparse.Namespace(peers="transformers,vllm", rounds=1, folder=tmp_path, envs=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        peers.measure(tmp_path, tmp_path, asked, 528)
    assert stopped == ["vllm", "transformers"]
