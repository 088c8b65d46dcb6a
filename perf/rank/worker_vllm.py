"""vLLM on a CPU: a prompt per candidate, of which its prefix cache has the user's part."""

import os


def load(options):
    """Operations `prefix` and `rank`."""
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_CPU_OMP_THREADS_BIND=",".join(str(core) for core in sorted(os.sched_getaffinity(0))),
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_NO_USAGE_STATS="1",
    )
    from vllm import LLM, SamplingParams

    llm = LLM(
        options["model"],
        dtype=options["dtype"],
        max_model_len=options["prompt"] + options["levels"] + 1,
        max_num_seqs=options["candidates"],
        max_num_batched_tokens=4096,
        enable_prefix_caching=True,
        block_size=32,
        enforce_eager=True,
        disable_log_stats=True,
        skip_tokenizer_init=True,
    )
    how = SamplingParams(max_tokens=1, logprobs=1, ignore_eos=True, detokenize=False)
    kept = {}

    def prefix(tokens):
        kept["tokens"] = tokens
        llm.generate([{"prompt_token_ids": tokens}], how, use_tqdm=False)

    def rank(items):
        prompts = [{"prompt_token_ids": kept["tokens"] + item} for item in items]
        llm.generate(prompts, how, use_tqdm=False)

    return {"prefix": prefix, "rank": rank, "generate": lambda prompts, width: None}
