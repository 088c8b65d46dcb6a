"""The side by side with peers: its arithmetic, what lands in cells when a worker misbehaves, and small real runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensembles.local import LocalRecommender
from perf.kit.work import work
from perf.peers import ratios
from perf.peers.__main__ import Refused, of_gemm_peak
from perf.peers.cells import Cell, measure, too_large
from perf.peers.envs import is_installed
from perf.peers.folder import PeerModel, write_hugging_face
from perf.peers.ours import NAME, OURS, Ours
from perf.peers.peer import Deadline, Peer, Worker
from perf.peers.same import agreement, score, score_difference
from perf.peers.system import Prompts
from perf.peers.table import make_peer
from tests.perf.test_peers_report import timed
from tests.serving.processes import left_of, until

INSTALLED = Path(__file__).parents[2] / "artifacts" / "peers"
# A peer without a model: it does what options["does"] says and answers the first item of every prompt.
SCRIPTED = """
import os, sys, time
print("libraries print to stdout")

def load(options):
    if options.get("refuses"):
        raise ValueError(options["refuses"])

    def generate(prompts, width):
        if len(prompts[0]) > 3:  # beyond the warm-up
            exec(options["does"])
        return [[[prompt[0], prompt[1], prompt[2]]] * width for prompt in prompts]

    return {"generate": generate}
"""


@pytest.fixture(scope="module")
def model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> PeerModel:
    folder = tmp_path_factory.mktemp("peers")
    (folder / "artifact").symlink_to(tiny)
    made = PeerModel("tiny", folder)
    write_hugging_face(made.artifact, folder / "hugging_face")
    np.save(folder / "items.npy", made.tokens)
    return made


@pytest.fixture
def scripted(tmp_path: Path):
    """Makes peers that do what a line of Python says; none of their processes is left."""
    made: list[Peer] = []

    def make(does: str = "pass", memory_limit: int = 1 << 40, **options: Any) -> Peer:
        script = tmp_path / "worker_scripted.py"
        script.write_text(SCRIPTED)
        options |= {"does": does, "levels": 3}
        made.append(
            Peer("scripted", Worker(Path(sys.executable), script, options, tmp_path / "log", memory_limit))
        )
        return made[-1]

    yield make
    for peer in made:
        pid = peer._process and peer._process.pid
        peer.stop()
        assert not pid or left_of(pid) == []


def takes(seconds: str) -> str:
    """A line by which a request takes so long on the worker's clock, which stands still otherwise; nobody waits."""
    return f"time.perf_counter = lambda end=time.perf_counter() + {seconds}: end"


def cell_of(peer: Any, model: PeerModel, budget_s: float = 20.0, repeats: int = 1, done: Any = ()) -> Cell:
    (cell,) = measure([peer], model, 6, 4, repeats=repeats, budget_s=budget_s, done=done)
    return cell


def test_a_peer_is_measured_and_its_answers_are_judged(model: PeerModel, scripted) -> None:
    """It answers the first item of every prompt, so all answers are valid and one is distinct."""
    cell = cell_of(scripted(), model)
    assert not cell.refusal and not cell.missing
    assert cell.valid_rate() == 1.0 and cell.distinct() == 1.0 and cell.memory > 1 << 20
    assert len(cell.turns[1][0].answers) == 16 and len(cell.turns[4][0].seconds) == 4
    wrong = cell_of(scripted("prompts[:] = [[5, 5, 5] for _ in prompts]"), model)
    assert wrong.valid_rate() == 0.0 and wrong.distinct() == 0.0


@pytest.mark.parametrize(
    ("does", "refusal"),
    [
        ("time.sleep(60)", "> 0.5 s"),
        ("raise RuntimeError('beams beyond what I can')", "RuntimeError: beams beyond what I can"),
        ("print('out of luck', file=sys.stderr); os._exit(3)", "died (3): out of luck"),
        ("hold = bytearray(os.urandom(1)) * (600 << 20); time.sleep(60)", "> 0.4 GiB"),
    ],
)
def test_a_peer_that_hangs_raises_dies_or_swells_says_so_in_its_cell(
    model: PeerModel, scripted, does: str, refusal: str
) -> None:
    peer = scripted(does, memory_limit=400 << 20)
    cell = cell_of(peer, model, budget_s=0.5 if refusal.endswith(" s") else 20.0)
    assert cell.refusal == refusal and cell.out_of_limits == refusal.startswith(">")
    assert refusal in ratios.table([cell]) and ratios.as_json(cell)["refusal"] == refusal


def test_a_peer_lives_on_after_its_worker_was_ended(model: PeerModel, scripted, tmp_path: Path) -> None:
    mark = tmp_path / "once"
    peer = scripted(f"if not os.path.exists({str(mark)!r}): open({str(mark)!r}, 'w'); os._exit(1)")
    assert cell_of(peer, model).refusal.startswith("died (1)")
    assert cell_of(peer, model).valid_rate() == 1.0


def test_batches_that_fail_leave_what_single_requests_gave(model: PeerModel, scripted) -> None:
    cell = cell_of(scripted("len(prompts) > 1 and os._exit(1)"), model, repeats=3)
    assert not cell.refusal and len(cell.turns[1]) == 1 and cell.rates(1) and not cell.rates(4)
    assert cell.missing[4].startswith("died (1)") and cell.missing[4] in ratios.table([cell])


def test_what_does_not_load_or_install_refuses_every_cell(model: PeerModel, scripted, tmp_path: Path) -> None:
    peer = scripted(refuses="no AVX-512")
    assert cell_of(peer, model).refusal == "ValueError: no AVX-512"
    (tmp_path / "worker_scripted.py").unlink()  # so that it cannot be started again
    assert cell_of(peer, model).refusal == "ValueError: no AVX-512"
    assert cell_of(Refused("vllm", "not installable: no wheel"), model).refusal == "not installable: no wheel"


def test_a_frozen_peer_takes_no_time(model: PeerModel, scripted, tmp_path: Path) -> None:
    """Its thread spins, but only while it is asked."""
    does = (
        "import threading; threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()"
    )
    peer = scripted(does)
    peer.start(4)
    peer.turn(Prompts.draw(model, 6, 1, (0,)), 4, 1, 20.0)
    threads = list(Path(f"/proc/{peer._process.pid}/task").iterdir())
    fields = [lambda thread=thread: (thread / "stat").read_text().split() for thread in threads]
    until(lambda: all(of()[2] == "T" for of in fields))  # a stop is only asked for when the turn is over
    before = [of()[13:15] for of in fields]
    time.sleep(0.5)
    assert [of()[13:15] for of in fields] == before and len(before) > 1


def test_a_stopped_peer_leaves_no_shared_memory(model: PeerModel, scripted) -> None:
    does = "from multiprocessing import shared_memory as m; os.kept = m.SharedMemory(f'peer-{os.getpid()}', True, 9)"
    peer = scripted(does)
    peer.start(4)
    peer.turn(Prompts.draw(model, 6, 1, (0,)), 4, 1, 20.0)
    kept = Path(f"/dev/shm/peer-{peer._process.pid}")
    assert kept.exists()
    peer.stop()
    assert not kept.exists()


def test_what_is_slow_is_measured_once_and_what_does_not_fit_says_so(
    model: PeerModel, scripted, monkeypatch
) -> None:
    """30 s a prompt: two turns of one at a time, one turn of four, and none of four within 120 s in all."""
    monkeypatch.setattr("perf.peers.cells.REPEAT_S", 100.0)
    monkeypatch.setattr("perf.peers.cells.TURN_S", 0.0)
    slow = takes("30 * len(prompts)")
    cell = cell_of(scripted(slow), model, repeats=2, budget_s=600)
    assert (len(cell.turns[1]), len(cell.turns[4]), cell.missing) == (2, 1, {})
    short = cell_of(scripted(slow), model, repeats=2, budget_s=120)
    assert (len(short.turns[1]), len(short.turns[4]), short.missing) == (2, 0, {4: "> 120 s"})
    once = cell_of(scripted(takes("70")), model, repeats=2, budget_s=120)
    assert once.turns == {1: [], 4: []} and len(once.latencies) == len(once.rates(1)) == 1


def test_larger_cells_of_what_ran_out_of_limits_are_not_tried(model: PeerModel) -> None:
    done = [
        Cell("a", "tiny", 6, 4, refusal="> 30 s", out_of_limits=True),
        Cell("b", "tiny", 6, 4, refusal="no"),
    ]
    assert too_large(Cell("a", "tiny", 6, 8), done) == "> 30 s (at 6 tokens, BW 4 already)"
    assert not too_large(Cell("a", "tiny", 3, 8), done) and not too_large(Cell("b", "tiny", 9, 8), done)
    assert not too_large(Cell("a", "other", 6, 8), done)
    cell = cell_of(Refused("a", "never started"), model, done=done)
    assert cell.refusal == "> 30 s (at 6 tokens, BW 4 already)" and cell.out_of_limits


def test_rows_of_tokens_are_those_of_a_plain_dictionary(model: PeerModel) -> None:
    first = {}
    for row, item in enumerate(model.tokens.tolist()):
        first.setdefault(tuple(item), row)
    draw = np.random.default_rng(0)
    asked = np.concatenate([model.tokens[:50], draw.integers(-1, 37, (500, 3)), [[-5, 10**6, 0]]])
    assert model.rows_of(asked).tolist() == [first.get(tuple(item), -1) for item in asked.tolist()]


def test_prompts_are_of_the_catalogue_and_never_the_same_twice(model: PeerModel) -> None:
    one, two = Prompts.draw(model, 12, 3, (1, 2)), Prompts.draw(model, 12, 3, (1, 3))
    assert one.tokens.shape == (3, 12) and not (one.tokens == two.tokens).all()
    assert (model.rows_of(one.tokens.reshape(-1, 3)) >= 0).all()
    assert (Prompts.draw(model, 12, 3, (1, 2)).first(2).tokens == one.tokens[:2]).all()


def full_logits(model: PeerModel):
    """Logits of the whole vocabulary from our own generator."""
    import torch

    from genrec.nn.checkpoint import load_generator

    generator = load_generator(model.artifact / "model")

    def logits(tokens: Any) -> np.ndarray:
        with torch.no_grad():
            hidden, _ = generator.prefill(torch.tensor([list(tokens)]))
            return generator.lm_head(hidden[0, -1]).double().numpy()

    return logits


def test_a_score_level_by_level_is_what_we_answer(model: PeerModel) -> None:
    asked = Prompts.draw(model, 12, 1, (0,))
    with LocalRecommender(model.artifact, beam_width=32, slots=2) as local:
        (answer,) = local.recommend([model.catalogue.item_ids[asked.rows[0]].tolist()], 5)
    rows = model.catalogue.rows_of(answer["item_ids"][0])
    again = [score(model, asked.tokens[0].tolist(), row, full_logits(model)) for row in rows.tolist()]
    np.testing.assert_allclose(answer["scores"][0], again, atol=1e-4)


@pytest.mark.long
@pytest.mark.serving
def test_ours_beside_a_peer(model: PeerModel, scripted) -> None:
    """The real server: it answers valid, distinct items, and says how long its phases took."""
    ours = [Ours(model, threads=1, clients=4, name=name) for name in OURS]
    try:
        cells = measure([*ours, scripted()], model, 12, 16, repeats=1, budget_s=60.0)
        assert [cell.refusal for cell in cells] == ["", "", "", ""]
        for cell, distinct in zip(cells, (16, 10, 16), strict=False):
            assert cell.valid_rate() == 1.0 and cell.distinct() == distinct and cell.memory > 50 << 20
        assert cells[0].compute_s("prefill") > 0 and cells[0].compute_s("decode") > 0
        assert [cell.compute_s("prefill") for cell in cells[1:]] == [None, None, None]
        found = [next(iter(ratios.ratios(cells, 16, name).values())) for name in OURS]
        assert {each["fastest"] for each in found} == {"scripted"} and len(
            {each["rate"] for each in found}
        ) == 3
    finally:
        for system in ours:
            system.stop()


@pytest.mark.serving
def test_a_real_peer_computes_what_we_compute(model: PeerModel, tmp_path: Path) -> None:
    """Where it is installed already: the same logits, our scores, and valid answers under its constraint."""
    if not is_installed(INSTALLED / "envs", "transformers"):
        pytest.skip("python -m perf.peers has not installed transformers")
    (tmp_path / "envs").symlink_to(INSTALLED / "envs")
    make = {"threads": 1, "width": 8, "prompt": 12}
    peer, constrained = (
        make_peer(name, model, tmp_path, **make) for name in ("transformers", "transformers-valid")
    )
    ours, asked = Ours(model, threads=1, clients=4), Prompts.draw(model, 12, 1, (0,))
    try:
        free, valid = measure([peer, constrained], model, 12, 8, repeats=1, budget_s=60.0)
        assert not free.refusal and len(free.answers[0]) == 8
        assert valid.valid_rate() == 1.0 and valid.distinct() == 8
        found = np.array(peer.ask(Deadline(60), do="logits", tokens=asked.tokens[0].tolist())[0])
        np.testing.assert_allclose(found, full_logits(model)(asked.tokens[0]), atol=1e-4)
        assert score_difference(ours, peer, asked, 8) < 1e-4
    finally:
        for system in (peer, constrained, ours):
            system.stop()


def test_agreement_is_the_share_of_the_same_answers(model: PeerModel, scripted) -> None:
    asked = Prompts.draw(model, 6, 1, (0,))
    teller, same = scripted(), scripted()
    assert agreement(teller, [same], asked, 4) == {"scripted": 1.0}
    assert agreement(teller, [scripted("prompts[:] = [[5, 5, 5]]")], asked, 4) == {"scripted": 0.0}


def test_share_of_the_gemm_rate(model: PeerModel) -> None:
    """Prefill took 0.5 s and decode 0.25 s; a pass has the beams below which there are two items or more."""
    leaves = np.unique(model.catalogue.codes, axis=0)
    beams = []
    for level in (1, 2):
        below = np.unique(leaves[:, :level], axis=0, return_counts=True)[1]
        beams.append(min(128, len(below)) * np.mean(below > 1))
    cell, cost = timed(NAME, 1.0, 1), work(model.config, 6, 128, "f32", beams)
    (found,) = of_gemm_peak([cell, timed("fast", 1.0, 1)], {"m": model}, 2.0).values()
    assert found["prefill"] == pytest.approx(cost.prefill_operations / 0.5 / 2e9)
    assert found["decode"] == pytest.approx(cost.decode_operations / 0.25 / 2e9)
