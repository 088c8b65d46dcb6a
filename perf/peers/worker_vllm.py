"""vLLM's offline beam search, which sends every beam as a request and lives off prefix caching."""

from vllm_cpu import start


def load(options):
    """Operation `generate`."""
    # Its beam search asks for two log-probabilities a beam.
    llm = start(options, max_logprobs=2 * options["width"], max_num_seqs=options["width"])
    from vllm.sampling_params import BeamSearchParams

    def generate(prompts, width):
        wanted = BeamSearchParams(beam_width=width, max_tokens=options["levels"], ignore_eos=True)
        found = llm.beam_search([{"prompt_token_ids": prompt} for prompt in prompts], wanted)
        return [[beam.tokens[-options["levels"] :] for beam in answer.sequences] for answer in found]

    return {"generate": generate}
