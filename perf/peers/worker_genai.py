"""OpenVINO GenAI: beam search of its continuous batching pipeline (paged attention, one copy of a prompt's KV).

Its own defaults where they work: arithmetic in bf16 on a CPU that has it, else fp32, and a KV cache in u8.
"""

import numpy
import openvino
import openvino_genai


def load(options):
    """Operation `generate`."""
    scheduler = openvino_genai.SchedulerConfig()
    # By default 256 sequences and 256 tokens per step: wide beams would run in slices, or not at all.
    scheduler.max_num_seqs = options["requests"] * options["width"]
    scheduler.max_num_batched_tokens = options["requests"] * max(options["width"], options["prompt"])
    scheduler.enable_prefix_caching = options["prefix_cache"]
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        options["model"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": options["threads"]}
    )

    def generate(prompts, width):
        config = openvino_genai.GenerationConfig()
        config.num_beams = config.num_return_sequences = width
        config.max_new_tokens = options["levels"]
        config.ignore_eos = True
        config.set_eos_token_id(options["vocabulary"])  # one must be named: a token that is not there
        inputs = [openvino.Tensor(numpy.array([prompt], numpy.int64)) for prompt in prompts]
        found = pipeline.generate(inputs, [config] * len(inputs))
        return [[list(beam) for beam in answer.m_generation_ids] for answer in found]

    return {"generate": generate}
