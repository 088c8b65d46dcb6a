"""vLLM on a CPU, as both of its workers start it. In bf16 on a CPU that has it."""

import os

KV_GIB = 2  # for 4 requests of 512 beams each with a block of its own, and their prompts
BLOCK = 32  # tokens; its default of 128 recomputes up to 127 tokens of the prompt for every beam


def start(options, **more):
    """The engine with a prefix cache, over as many cores of this process as everybody has."""
    cores = sorted(os.sched_getaffinity(0))[: options["threads"]]
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE=str(KV_GIB),
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_NO_USAGE_STATS="1",
    )
    from vllm import LLM

    return LLM(
        options["model"],
        dtype=options["dtype"],
        max_model_len=options["prompt"] + options["levels"] + 1,
        max_num_batched_tokens=4096,
        enable_prefix_caching=True,
        block_size=BLOCK,
        enforce_eager=True,  # compiling takes minutes of start here
        disable_log_stats=True,
        **more,
    )
