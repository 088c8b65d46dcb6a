"""The GPU script without a GPU: all of it that can run on CPU tensors, and the arithmetic of its floors."""

import json
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from genrec.catalogue.validity import ValidityIndex
from genrec.engine.cuda.host import _mapping_of
from genrec.nn.xattention import xattention
from genrec.schedule.scheduler import Scheduler
from genrec.steps.prefill import MAX_ROWS
from genrec.steps.prompts_later import BATCH_TOKENS
from perf.gpu import attention, parts, requests, run, through_triton
from perf.gpu.pool_memory import pool_memory
from perf.gpu.table import table
from perf.gpu.timing import Missing, data_sheet_peak
from tests.oracles.semantic_id import codes_of

CPU = torch.device("cpu")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the emulated kernel is not compiled")
def test_a_dry_run_goes_through_every_part(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "perf.gpu.run", "--dry", "--limit", "3600", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    last = json.loads(done.stdout.splitlines()[-1])
    kept = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert {key: last[key] for key in kept} == kept and last["machine"]["device"] == "CPU dry run"
    assert last["failed"] == {} and set(last["skipped"]) == {"sanitizer"}
    assert len(last["checked"]) == 9 and all(last["checked"].values())
    assert {"small", "large", "small, on the CPU", "hstu-ranker", "hstu-next, large"} < set(last["train"])
    assert last["rank_error"] < 0.03 and set(last["rank"]) == {"s12_b1", "s12_b2"}
    assert all(row["floor"] > 0 and row["there"] > 0 for row in last["rank"].values())
    assert max(last["hstu_errors"].values()) < 1e-3 and set(last["hstu"]) == {"default"}
    assert _mapping_of(pool_memory((2, 3))) is not None, "memory that the engine page-locks, as a pool's"
    assert set(last["rank_served"]) == {"in_flight_1", "in_flight_4", "in_flight_16"}
    assert last["cascade"]["recommend_and_rank"]["user_reused"] == 12  # of 12 that the generator computed
    assert last["worst_error_over_tolerance"] < 1 and last["fused_worst_error_over_tolerance"] < 1
    assert set(last["ms"]) == {"s12_b1", "s12_b2"}
    for row in last["kernel"].values():
        assert {"ms", "baseline_ms", "floor_ms"} <= set(row)
        assert isinstance(row["baseline_ms"], float) and isinstance(row["flex_ms"], float), row
        assert row["sets"] * attention.DRY[0].bytes > 2 * (1 << 14) and row["worst_error_over_tolerance"] < 1
    assert set(last["served"]) == set(last["ms"]), "the same requests through a real tritonserver"
    assert "perf_analyzer" in last["served"]["s12_b1"]["by"]
    for row in last["served"].values():
        assert (row["valid_share"], row["distinct_share"], row["enough_share"]) == (1, 1, 1)
    for name, row in last["requests"].items():
        assert last["served"][name]["tokens"] == row["tokens"] and row["padded_to"] == 32
        assert set(row["prefill_share_of"]) == {"measured_gemm", "data_sheet"}
        assert set(row["parts_ms"]) == {"prefill", "decode", "selection", "gaps"}


def dry(*arguments, lacking=()):
    """The last line of a dry run, in a process that cannot import what is `lacking`."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({lacking})); "
        f"from perf.gpu.run import main; main(['--dry', *{arguments}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the emulated kernel is not compiled")
def test_a_machine_without_what_serving_needs_measures_the_rest():
    last = dry("--parts", "requests,triton", lacking=("numba", "pyarrow", "tritonclient", "pytriton"))
    assert set(last["ms"]) == {"s12_b1", "s12_b2"} and last["kernel"] == {} and last["failed"] == {}
    assert list(last["skipped"]) == ["triton"] and "numba" in last["skipped"]["triton"]


def test_a_machine_without_a_server_is_told_so(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setitem(sys.modules, "pytriton", None)
    with pytest.raises(Missing, match="tritonserver: not on PATH"):
        through_triton.find_tools()


def test_no_part_begins_when_the_time_is_over():
    last = dry("--limit", "0")
    assert last["ms"] == {} and last["failed"] == {}
    assert set(last["skipped"].values()) == {"no time was left"} and "requests" in last["skipped"]


def test_a_part_that_there_is_not_is_named():
    with pytest.raises(SystemExit):
        run.main(["--dry", "--parts", "requests,cooking"])


@pytest.mark.parametrize("status", [0, 1])
def test_what_a_sanitizer_finds_is_told_by_each_tool(tmp_path, monkeypatch, status):
    """A stand-in that has found errors: like the real one, it exits as it is told to, else as its command did.

    What watches memory runs without torch's own allocator, which would lend parts of larger blocks.
    """
    tool = tmp_path / "compute-sanitizer"
    errors = 3 * status
    tool.write_text(
        f"""#!/bin/sh
for option; do case $option in
  --error-exitcode=*) told=${{option#*=}};;
  --tool=memcheck | --tool=initcheck) [ "$PYTORCH_NO_CUDA_MEMORY_CACHING" = 1 ] || exit 1;;
  --tool=*) [ -z "$PYTORCH_NO_CUDA_MEMORY_CACHING" ] || exit 1;;
esac; done
echo "========= ERROR SUMMARY: {errors} errors"
[ {errors} = 0 ] || exit ${{told:-0}}
"""
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    summary = f"========= ERROR SUMMARY: {errors} errors"
    said = attention.sanitize(tmp_path / "library.so")
    assert len(said) == len(attention.TOOLS) * len(attention.CHECKED)
    assert {each.strip() for each in said.values()} == {f"status 9: {summary}" if status else summary}


def test_a_sanitizer_that_does_not_end_is_told(tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(attention, "TOOL_S", 0.2)
    said = attention.sanitize(tmp_path / "library.so")
    assert set(said.values()) == {"not done in 0.2 s"}
    kept = parts.GpuResults()
    kept.results["checked"] = {"memcheck, rank": False, "racecheck, rank": True}
    assert "NOT SHOWN memcheck, rank" in table(kept.results)
    assert "racecheck" not in table(kept.results)


@pytest.mark.parametrize("case", attention.TIMED, ids=lambda case: case.name)
def test_what_is_timed_is_out_of_the_cache_when_its_turn_comes(case):
    assert case.bytes == sum(2 * n for n in sizes_of(case))
    for cache in (40 << 20, 50 << 20, 60 << 20):
        sets = attention.rotated_sets(case.bytes, cache)
        assert 2 * cache < sets * case.bytes <= 2 * cache + case.bytes


def sizes_of(case):
    own = case.batch * case.beams * case.unshared * case.kv_heads * case.size
    shared = case.batch * case.kv_heads * case.span * case.size
    return (case.batch * case.beams * case.heads * case.size, shared, shared, own, own)


def test_a_kernel_that_is_wrong_as_it_is_timed_is_not_timed():
    case = attention.DRY[0]
    inputs = case.inputs(CPU, torch.bfloat16)
    assert attention.check_timed(case, inputs, {0: xattention}) < 1
    with pytest.raises(AssertionError, match="splits 4"):
        attention.check_timed(case, inputs, {0: xattention, 4: scales_wrongly})


def test_the_data_sheet_s_peak_is_that_of_the_form_of_the_card():
    assert data_sheet_peak("NVIDIA H100 80GB HBM3") == 989e12 > data_sheet_peak("NVIDIA H100 PCIe")
    assert data_sheet_peak("NVIDIA H100 NVL") == data_sheet_peak("NVIDIA H200 NVL") == 835e12
    assert data_sheet_peak("NVIDIA L4") < data_sheet_peak("NVIDIA L40") < data_sheet_peak("NVIDIA L40S")
    assert data_sheet_peak("NVIDIA Something") is None


def test_eight_at_once_are_one_batch():
    """By the scheduler that serves them; with the default they were eight batches of one."""
    taken = []
    setting = requests.FULL
    for capacity in (through_triton.batch_tokens(setting), BATCH_TOKENS):
        sizes, done = [], threading.Event()

        def run_batch(batch, sizes=sizes, done=done):
            sizes.append(len(batch))
            if sum(sizes) == 8:
                done.set()

        scheduler = Scheduler([run_batch], capacity, wait_s=60.0, most=MAX_ROWS)
        for n in range(8):
            scheduler.submit(n, 5024 + setting.width * 2)
        scheduler.close()
        assert done.is_set()
        taken.append(sizes)
    assert taken == [[8], [1] * 8]


def test_dry_figures_never_land_among_the_results():
    with pytest.raises(SystemExit, match="not saved"):
        run.main(["--dry", "--save"])


def test_floors_by_hand():
    """BW 512, S 1,024, 16 heads of 128 over 8: 4.3 GFLOP; 4.2 MB of prompt KV, 4.2 MB q and output, 4.2 MB own KV."""
    floors = attention.Case(1, 512, 16, 8, 128, 1024, 2).floors_ms(1e12, 1e15)
    assert floors["operations"] == pytest.approx(4 * 512 * 16 * 128 * 1026 / 1e12)
    megabytes = (2 * 1024 * 8 * 128 + 2 * 512 * 16 * 128 + 2 * 512 * 2 * 8 * 128) * 2 / 1e6
    assert floors["bytes"] == pytest.approx(megabytes * 1e6 / 1e9)


def test_peers_compute_the_same_attention():
    """What the kernel is timed beside must be its equal in result; FlashInfer's is checked by no one here."""
    case = attention.Case(2, 5, 4, 2, 16, 11, 2)
    inputs = case.inputs(CPU, torch.float32)
    want = attention.oracle(*(t.numpy() for t in inputs))
    per_beam = attention._per_beam(case, inputs)().reshape(2, 5, 4, 16)
    flex = attention._flex(case, inputs)().transpose(1, 2)
    assert np.allclose(per_beam.numpy(), want, atol=1e-5)
    assert np.allclose(flex.numpy(), want, atol=1e-5)


def test_the_random_tree_is_the_one_that_is_served():
    """`random_tree` builds without numba what ValidityIndex builds from the same semantic IDs."""
    sizes = (7, 5, 9)
    tree = requests.random_tree(sizes, 60, CPU, seed=3)
    ids = np.sort(np.random.default_rng(3).choice(7 * 5 * 9, 60, replace=False))
    index = ValidityIndex.build(codes_of(ids, sizes), sizes, np.ones(60, np.int64), np.arange(60))
    for level in range(3):
        assert np.array_equal(tree.codes[level], index.codes[level])
        assert np.array_equal(tree.pointers[level], index.children_into(level + 1))


def test_operations_of_a_prefill_by_hand():
    config = requests.FULL.config
    matrices, kv = 2048 * (2 * 2048 + 2 * 1024 + 3 * 6144), 2048 * 2 * 1024
    attention = 2 * 2048 * 1000 * 1000
    last = 2 * kv * 1000 + 2 * (matrices - kv) + 4 * 2048 * 1000
    assert requests.prefill_operations(config, 1000, 2) == 2 * (27 * (2 * matrices * 1000 + attention) + last)


def ignores_the_last_token(q, k, v, own_k, own_v, lengths):
    return xattention(q, k, v, own_k, own_v, lengths - 1)


def ignores_the_padding(q, k, v, own_k, own_v, lengths):
    return xattention(q, k, v, own_k, own_v, torch.full_like(lengths, k.shape[2]))


def scales_wrongly(q, *rest):
    return xattention(2 * q, *rest)


def takes_another_beam_s_token(q, k, v, own_k, own_v, lengths):
    return xattention(q, k, v, own_k.roll(1, dims=1), own_v.roll(1, dims=1), lengths)


def test_the_right_attention_passes_the_checks():
    generator = requests.make_generator(requests.DRY, xattention, CPU)
    errors = requests.check_reference(generator, requests.DRY)
    assert set(errors["logits_s12"]) == {"prefill", "decode_2", "decode_3"} and "scores_s12" in errors


@pytest.mark.parametrize(
    "wrong", [ignores_the_last_token, ignores_the_padding, scales_wrongly, takes_another_beam_s_token]
)
def test_a_wrong_attention_fails_the_checks(wrong):
    generator = requests.make_generator(requests.DRY, wrong, CPU)
    with pytest.raises(AssertionError, match=r"decode_\d: logits are"):
        requests.check_reference(generator, requests.DRY)


def without_the_best(found):
    nodes = found.nodes.copy()
    nodes[np.arange(len(nodes)), found.scores.argmax(1)] = -1
    return found._replace(nodes=nodes)


def without_a_score(found):
    """Of the last path in order, so that others are looked at before it."""
    scores = found.scores.copy()
    scores[0, np.where(found.alive[0], found.paths[0], -1).argmax()] = np.nan
    return found._replace(scores=scores)


def test_wrong_answers_fail_the_checks(monkeypatch):
    """Right logits, but a search that returns other beams, or other scores, than it has found, or loses some.

    Or a score that is no number.
    """
    generator = requests.make_generator(requests.DRY, xattention, CPU)
    right = generator.generate
    for wrong in (
        lambda *given: right(*given)._replace(paths=right(*given).paths + 1),
        lambda *given: right(*given)._replace(scores=right(*given).scores + 0.2),
        lambda *given: without_the_best(right(*given)),
        lambda *given: without_a_score(right(*given)),
    ):
        monkeypatch.setattr(generator, "generate", wrong)
        with pytest.raises(AssertionError, match=r"is no beam, and|from the reference's"):
            requests.check_reference(generator, requests.DRY)
