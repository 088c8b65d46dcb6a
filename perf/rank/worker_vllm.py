"""vLLM as a ranker: a prompt per candidate, of which its prefix cache has the user's part."""

from vllm_cpu import start


def load(options):
    """Operations `prefix` and `rank`."""
    llm = start(options, max_num_seqs=options["candidates"], skip_tokenizer_init=True)
    from vllm import SamplingParams

    how = SamplingParams(max_tokens=1, logprobs=1, ignore_eos=True, detokenize=False)
    kept = {}

    def prefix(tokens):
        kept["tokens"] = tokens
        llm.generate([{"prompt_token_ids": tokens}], how, use_tqdm=False)

    def rank(items):
        prompts = [{"prompt_token_ids": kept["tokens"] + item} for item in items]
        llm.generate(prompts, how, use_tqdm=False)

    return {"prefix": prefix, "rank": rank, "generate": lambda prompts, width: None}
