"""vLLM on a CPU: its offline beam search, which sends every beam as a request and lives off prefix caching.

In bf16 on a CPU that has it.
"""

import os

KV_GIB = 2  # for 4 requests of 512 beams each with a block of its own, and their prompts


def load(options):
    """Operation `generate`."""
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE=str(KV_GIB),
        VLLM_CPU_OMP_THREADS_BIND=",".join(str(core) for core in sorted(os.sched_getaffinity(0))),
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_NO_USAGE_STATS="1",
    )
    from vllm import LLM
    from vllm.sampling_params import BeamSearchParams

    llm = LLM(
        options["model"],
        dtype=options["dtype"],
        max_model_len=options["prompt"] + options["levels"] + 1,
        max_logprobs=2 * options["width"],  # what its beam search asks for
        max_num_seqs=options["width"],
        max_num_batched_tokens=4096,
        enable_prefix_caching=True,
        block_size=32,  # its default of 128 recomputes up to 127 tokens of the prompt for every beam
        enforce_eager=True,  # compiling takes minutes of start here
        disable_log_stats=True,
    )

    def generate(prompts, width):
        wanted = BeamSearchParams(beam_width=width, max_tokens=options["levels"], ignore_eos=True)
        found = llm.beam_search([{"prompt_token_ids": prompt} for prompt in prompts], wanted)
        return [[beam.tokens[-options["levels"] :] for beam in answer.sequences] for answer in found]

    return {"generate": generate}
