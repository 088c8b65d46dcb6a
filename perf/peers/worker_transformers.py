"""Hugging Face transformers: `generate` with beams, with or without its processor of allowed prefixes.

In bf16 on a CPU that has it; `logits`, which tell who computes the same, are always of fp32.
"""

import numpy
import torch
from transformers import AutoModelForCausalLM


def children(items):
    """Tokens that may follow a path: {(): [...], (t1,): [...], ...} of items int[n, L]."""
    found = {}
    for item in items.tolist():
        for level, token in enumerate(item):
            found.setdefault(tuple(item[:level]), {})[token] = None  # a set that keeps its order
    return {path: list(tokens) for path, tokens in found.items()}


def load(options):
    """Operations `generate` and `logits`; `items` is a file of valid token tuples, or none."""
    torch.set_num_threads(options["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        options["model"], dtype=getattr(torch, options["dtype"])
    ).eval()
    exact = []  # there while it is asked for, not while memory is measured
    levels = options["levels"]
    valid = children(numpy.load(options["items"])) if options.get("items") else None

    def generate(prompts, width):
        exact.clear()
        tokens = torch.tensor(prompts)

        def allowed(_, beam):
            # A beam of score -inf needs one too
            return valid.get(tuple(beam[len(prompts[0]) :].tolist()), [0])

        with torch.inference_mode():
            found = model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=levels,
                do_sample=False,
                pad_token_id=0,
                prefix_allowed_tokens_fn=allowed if valid else None,
            )
        return found[:, -levels:].view(len(prompts), width, levels).tolist()

    def logits(tokens):
        if not exact:
            exact.append(AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.float32).eval())
        with torch.inference_mode():
            return exact[0](torch.tensor([tokens])).logits[0, -1].tolist()

    return {"generate": generate, "logits": logits}
