"""The HSTU ranker: what a score may depend on, what is held out, and that training learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from genrec.errors import ArtifactError
from genrec.nn.hstu import CANDIDATE, HstuConfig, HstuRanker, Tokens
from genrec.nn.hstu_checkpoint import load_hstu, save_hstu
from genrec.nn.hstu_plain import plain_attention
from genrec.rank.hstu import CONFIG
from training.hstu import batches as hstu_batches
from training.hstu.baselines import biased_factors, item_rates
from training.hstu.measure import gaucs, scores_of
from training.hstu.ratings import HELD_OUT, Ratings
from training.hstu.settings import HstuSettings
from training.hstu.train import train_hstu
from training.sharded.world import World

ITEMS, USERS, MOST = 40, 60, 16


def some_ratings() -> Ratings:
    """Users of 45 to 60 events who like even items or odd ones, which only their ratings tell."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(45, 61, USERS)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    items = rng.integers(0, ITEMS, offsets[-1])
    taste = np.repeat(rng.integers(0, 2, USERS), lengths)
    ratings = np.where(items % 2 == taste, rng.integers(4, 6, len(items)), rng.integers(1, 4, len(items)))
    times = np.concatenate([np.sort(rng.integers(10**9, 10**9 + 10**6, n)) for n in lengths])
    features = np.stack((rng.integers(1, 3, USERS), rng.integers(3, 8, USERS)), 1)
    return Ratings(offsets, items, ratings, times, features, 7)


def some_model(layers: int = 2) -> HstuRanker:
    """One whose weights, biases of attention too, are large enough to matter."""
    torch.manual_seed(0)
    config = HstuConfig(ITEMS, (8, 8), 7, max_history=MOST, hidden_size=16, layers=layers, dropout=0.0)
    model = HstuRanker(config, torch.randint(0, 8, (ITEMS, 2))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        for table in (model.of_item, model.of_code, model.of_rating, model.of_feature):
            table.weight[0] = 0
    return model


def logits(model: HstuRanker, ratings: Ratings, samples: list[hstu_batches.Sample]) -> torch.Tensor:
    with torch.no_grad():
        return model(hstu_batches.tokens_of(ratings, samples))


def changed(ratings: Ratings, name: str, events: np.ndarray) -> Ratings:
    """The same with other items or ratings at some events."""
    values = getattr(ratings, name).copy()
    values[events] = (values[events] + 1) % ITEMS if name == "items" else values[events] % 5 + 1
    return replace(ratings, **{name: values})


def test_held_out_labels_are_not_read() -> None:
    ratings, model = some_ratings(), some_model()
    samples = hstu_batches.held_out_samples(ratings, np.arange(USERS), 0, MOST)
    other = changed(ratings, "ratings", np.flatnonzero(ratings.held_out))
    asked = hstu_batches.events_of(samples)
    assert not np.array_equal(ratings.labels(asked), other.labels(asked))
    assert torch.equal(logits(model, ratings, samples), logits(model, other, samples))


def test_a_candidate_does_not_see_others() -> None:
    ratings, model = some_ratings(), some_model()
    (sample,) = hstu_batches.held_out_samples(ratings, np.array([3]), 0, MOST)
    whole = logits(model, ratings, [sample])
    other = logits(model, changed(ratings, "items", sample.asked[4:5]), [sample])
    same = np.arange(HELD_OUT) != 4
    assert torch.equal(whole[same], other[same]) and not torch.equal(whole[4], other[4])
    for c in range(HELD_OUT):  # alone, it scores the same
        one = sample._replace(asked=sample.asked[[c]], seen=sample.seen[[c]], now=sample.now[[c]])
        torch.testing.assert_close(logits(model, ratings, [one])[0], whole[c], rtol=1e-4, atol=1e-5)


def test_a_user_who_was_away_for_a_lifetime_is_read() -> None:
    """What he did since is told apart."""
    ratings, found = some_ratings(), []
    (sample,) = hstu_batches.held_out_samples(ratings, np.array([0]), 0, MOST)
    for back in (2**32, 2**33):
        times = ratings.times.copy()
        times[: sample.start + 1] -= back
        found.append(hstu_batches.tokens_of(replace(ratings, times=times), [sample]).layout.time)
    assert torch.equal(*found)
    since = ratings.times[sample.start + 1 : sample.stop]
    assert found[0][3 : 3 + len(since)].diff().tolist() == np.diff(since).tolist()


def test_a_candidate_sees_only_what_came_before_its_list() -> None:
    """Every event of a window in turn: its rating moves the candidates that see it, and none before."""
    ratings, model = some_ratings(), some_model()
    samples = hstu_batches.TrainingSamples(
        ratings.offsets[:2], ratings.offsets[1:2], MOST, np.random.default_rng(0)
    )
    sample = max(samples, key=lambda each: each.stop - each.start)
    before = logits(model, ratings, [sample])
    moved = 0
    for place in range(sample.stop - sample.start):
        after = logits(model, changed(ratings, "ratings", np.array([sample.start + place])), [sample])
        equal = (before == after).all(1).numpy()
        assert equal[sample.seen <= place].all() and not equal[sample.seen > place].any()
        moved += (~equal).sum()
    assert moved == sample.seen.sum() > 0
    assert (sample.start + sample.seen <= sample.asked).all() and (sample.now <= sample.asked).all()


def test_features_and_history_are_seen() -> None:
    ratings, model = some_ratings(), some_model()
    (sample,) = hstu_batches.held_out_samples(ratings, np.array([0]), 0, MOST)
    before = logits(model, ratings, [sample])
    other = replace(ratings, features=ratings.features % 7 + 1)
    assert (before != logits(model, other, [sample])).all()
    for name in ("items", "ratings"):
        assert (before != logits(model, changed(ratings, name, np.array([sample.start])), [sample])).all()


def test_fused_and_plain_give_the_same_scores_and_gradients() -> None:
    ratings = some_ratings()
    samples = hstu_batches.TrainingSamples(
        ratings.offsets, ratings.offsets[1:], MOST, np.random.default_rng(0)
    )
    tokens, found = hstu_batches.tokens_of(ratings, [samples[at] for at in range(20)]), []
    for attend in (None, plain_attention):
        model = some_model()
        for layer in model.layers:
            layer.attend = attend or layer.attend
        scores = model(tokens)
        scores.square().mean().backward()
        found.append([scores.detach(), *(each.grad for each in model.parameters())])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def test_groups_have_norms_of_their_own() -> None:
    ratings, model = some_ratings(), some_model()
    samples = hstu_batches.held_out_samples(ratings, np.arange(4), 0, MOST)
    before = logits(model, ratings, samples)
    with torch.no_grad():
        model.layers[-1].norm.weight[CANDIDATE] += 1
    other = some_model()
    with torch.no_grad():  # of the last layer, only a candidate's own norm and those of keys reach a score
        other.norm.weight[0] += 1
        other.norm.weight[1] += 1
    assert (before != logits(model, ratings, samples)).any(1).all()
    assert torch.equal(before, logits(other, ratings, samples))


def test_samples_hold_out_the_newest_and_train_on_the_others() -> None:
    ratings = some_ratings()
    ends = ratings.offsets[1:] - HELD_OUT
    trained = hstu_batches.TrainingSamples(ratings.offsets, ends, MOST, np.random.default_rng(1))
    touched = np.concatenate([np.arange(each.start, each.stop) for each in trained])
    assert not ratings.held_out[touched].any()
    tested = hstu_batches.held_out_samples(ratings, np.arange(USERS), 0, MOST)
    assert np.array_equal(np.concatenate([each.asked for each in tested]), np.flatnonzero(ratings.held_out))
    assert all(each.stop == each.asked[0] and each.stop - each.start == MOST for each in tested)
    checked = hstu_batches.held_out_samples(ratings, np.arange(USERS), HELD_OUT, MOST)
    assert all(each.asked[-1] + 1 == other.asked[0] for each, other in zip(checked, tested, strict=True))
    groups = list(hstu_batches.Batches(trained, 2, 200, np.random.default_rng(0)))
    each_once = sorted((each.user, each.start, each.stop) for group in groups for each in group)
    assert each_once == sorted((each.user, each.start, each.stop) for each in trained)
    sizes = [[each.size(2) for each in group] for group in groups]
    assert all(sum(group[:-1]) < 200 for group in sizes) and all(sum(group) >= 200 for group in sizes[:-1])
    assert all((ratings.users_of(each.asked) == each.user).all() for each in trained)


def fresh_model(dropout: float = 0.0) -> HstuRanker:
    torch.manual_seed(0)
    config = HstuConfig(ITEMS, (8, 8), 7, max_history=MOST, hidden_size=16, layers=2, dropout=dropout)
    return HstuRanker(config, torch.randint(0, 8, (ITEMS, 2)))


def test_training_learns_what_only_ratings_tell(tmp_path: Path) -> None:
    ratings = some_ratings()
    settings = HstuSettings(epochs=25, patience=25, tokens=1000, learning_rate=5e-3, averaging=0.9)
    kept, report = train_hstu(World(), ratings, fresh_model(), settings, tmp_path / "state")
    samples = hstu_batches.held_out_samples(ratings, np.arange(USERS), 0, MOST)
    held = np.flatnonzero(ratings.held_out)
    figures = gaucs(ratings, held, scores_of(kept, ratings, samples, ""))
    rates = gaucs(ratings, held, item_rates(ratings))
    assert figures["GAUC r>=4"] > 0.9 > 0.7 > rates["GAUC r>=4"], (figures, rates, report["log"][-1])


def test_a_ranker_is_the_same_from_disk(tmp_path: Path) -> None:
    ratings, model = some_ratings(), some_model()
    samples = hstu_batches.held_out_samples(ratings, np.arange(5), 0, MOST)
    save_hstu(model, tmp_path)
    assert torch.equal(logits(load_hstu(tmp_path), ratings, samples), logits(model, ratings, samples))
    (tmp_path / CONFIG).write_text((tmp_path / CONFIG).read_text().replace('"layers": 2', '"layers": 3'))
    with pytest.raises(ArtifactError, match="no HSTU ranker"):
        load_hstu(tmp_path)


def test_baselines_do_not_read_held_out_labels() -> None:
    ratings = some_ratings()
    other = changed(ratings, "ratings", np.flatnonzero(ratings.held_out))
    assert np.array_equal(item_rates(ratings), item_rates(other))
    for ours, theirs in zip(biased_factors(ratings), biased_factors(other), strict=True):
        assert np.array_equal(ours, theirs)


def test_tokens_have_no_rating_of_a_candidate() -> None:
    ratings = some_ratings()
    tokens: Tokens = hstu_batches.tokens_of(
        ratings, hstu_batches.held_out_samples(ratings, np.arange(3), 0, MOST)
    )
    asked = tokens.group == CANDIDATE
    assert int(asked.sum()) == 3 * HELD_OUT and not tokens.rating[asked].any() and tokens.item[asked].all()


def test_what_is_unknown_is_not_read() -> None:
    """What is left out of a sample may be another and its scores are the same, and not those with it told."""
    ratings, model = some_ratings(), some_model()
    samples = hstu_batches.held_out_samples(ratings, np.arange(6), 0, MOST)
    others = {
        "features": ratings.features % 7 + 1,
        "ratings": ratings.ratings % 5 + 1,
        "times": ratings.times + np.arange(len(ratings.times)) ** 2,
    }
    told = logits(model, ratings, samples)
    for name, values in others.items():
        known = hstu_batches.Known(*(np.full(6, each != name) for each in others))
        with torch.no_grad():
            one, other = (
                model(hstu_batches.tokens_of(each, samples, known))
                for each in (ratings, replace(ratings, **{name: values}))
            )
        assert torch.equal(one, other) and (one != told).any(1).all()
    shares = np.mean(hstu_batches.Known.but(0.1, 10**5, np.random.default_rng(0)), 1)
    np.testing.assert_allclose(shares, 0.9, atol=0.01)
