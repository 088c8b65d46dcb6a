"""`recommend_draft` in one process, against enumeration of the whole catalogue, for several L, T and BW."""

import numpy as np
import pytest

from ensembles.local import LocalRecommender, request
from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError, DeadlineExceeded, GenrecError, InputError
from genrec.nn.checkpoint import load_generator
from genrec.nn.draft_checkpoint import load_draft
from tests.oracles.draft_twin import plain_states, score_tuples
from tests.oracles.twin import twin_artifact

SHAPES = {(40,): 30, (7, 6, 5): 60, (4, 4, 4, 4): 60}


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def artifact(request, tmp_path_factory):
    return twin_artifact(tmp_path_factory.mktemp("twin") / "artifact", request.param, SHAPES[request.param])


def local(artifact, width, verify="every"):
    return LocalRecommender(artifact, width, "twin", decoder="draft", verify=verify)


@pytest.mark.parametrize("exclude", [False, True])
def test_a_beam_as_wide_as_the_catalogue_ranks_it_exactly(artifact, exclude):
    catalogue, generator = load_catalogue(artifact, load_config(artifact)), load_generator(artifact / "model")
    history, offsets = [3, 9, 9, 17], np.array(generator.config.code_offsets)
    with local(artifact, 256) as wide:
        (answer,) = wide.recommend([catalogue.item_ids[history]], len(catalogue), exclude)
    head = load_draft(artifact / "model")
    states = plain_states(generator, head, (catalogue.codes[history] + offsets).ravel().tolist())
    left = [row for row in range(len(catalogue)) if not (exclude and row in history)]
    truth = score_tuples(generator, head, states, {tuple(map(int, codes)) for codes in catalogue.codes})
    scores = {int(catalogue.item_ids[row]): truth[tuple(map(int, catalogue.codes[row]))] for row in left}
    found = answer["item_ids"][0].tolist()
    assert sorted(found) == sorted(scores)
    assert np.allclose(answer["scores"][0], [scores[item] for item in found], atol=5e-5)
    assert (np.diff(answer["scores"][0]) <= 0).all()
    assert answer["report"][0].tolist() == [
        0,
        0,
        0,
        4 * catalogue.levels,
        len({tuple(catalogue.codes[row]) for row in left}),
        1,
    ]


@pytest.mark.parametrize("verify", ["every", "last"])
def test_a_batch_answers_like_one_by_one_and_errors_stay_with_their_request(artifact, verify):
    catalogue, draw = load_catalogue(artifact, load_config(artifact)), np.random.default_rng(1)
    requests = [request(draw.choice(catalogue.item_ids, n), 5, bool(n % 2)) for n in range(1, 20)]
    requests[3] = request([], 4)
    requests[5] = request(catalogue.item_ids[:3], 10)
    requests[8] = request([-1, 2**62, 5], 2)
    before = [metrics.DRAFT_BEAMS.value(verdict=verdict) for verdict in ("valid", "lost")]
    with local(artifact, 9, verify) as narrow:
        batch = narrow.runtime.run(requests)
        singly = [narrow.runtime.run([r])[0] for r in requests]
        candidates, lost = narrow.runtime.drafted
    counted = [metrics.DRAFT_BEAMS.value(verdict=verdict) for verdict in ("valid", "lost")]
    assert np.subtract(counted, before).tolist() == [candidates - lost, lost]
    for one, together in zip(singly, batch, strict=True):
        if isinstance(one, GenrecError):
            assert str(one) == str(together)
        else:
            assert all((one[name] == together[name]).all() for name in one)
    assert isinstance(batch[5], InputError)
    assert batch[3]["report"][0].tolist() == [1, 0, 0, 0, 0, 1]
    valid = [set(a["item_ids"][0].tolist()) for a in batch if isinstance(a, dict)]
    assert all(items <= set(catalogue.item_ids.tolist()) for items in valid)
    assert candidates > 0 and 0 <= lost < candidates
    if verify == "every":
        assert lost == 0 and {len(items) for items in valid} == {2, 4, 5}


def test_late_requests_are_not_worked_on(artifact):
    catalogue = load_catalogue(artifact, load_config(artifact))
    with local(artifact, 9) as narrow:
        encoded = narrow.runtime._steps["encode_history"].run([request(catalogue.item_ids[:3], 2)])[0]
        encoded["ticket"][0, 2] = 1
        for name in ("prefill_draft", "draft_beam"):
            (late,) = narrow.runtime._steps[name].run([{**encoded, "states": np.zeros((1, 9), np.float32)}])
            assert isinstance(late, DeadlineExceeded) and name in str(late)


def test_an_artifact_without_a_draft_head_says_so(artifact, tmp_path):
    with pytest.raises(InputError, match="decoder"):
        LocalRecommender(artifact, 9, "twin", decoder="guess")
    (tmp_path / "manifest.json").write_text('{"made": {"key": "", "outputs": {}, "facts": {}}}')
    with pytest.raises(
        ArtifactError, match=f"`genrec train {tmp_path} --draft alone` and `genrec export {tmp_path}`"
    ):
        LocalRecommender(tmp_path, 9, "twin", decoder="draft")
