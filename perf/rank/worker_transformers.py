"""Hugging Face transformers: candidates in one pass behind a cached prefix, masked from each other."""

import copy

import torch
from transformers import AutoModelForCausalLM, DynamicCache


def load(options):
    """Operations `prefix` and `rank`."""
    torch.set_num_threads(options["threads"])
    dtype = getattr(torch, options["dtype"])
    model = AutoModelForCausalLM.from_pretrained(
        options["model"], dtype=dtype, attn_implementation="sdpa"
    ).eval()
    kept = {}

    @torch.inference_mode()
    def prefix(tokens):
        kept["cache"] = DynamicCache(config=model.config)
        found = model(torch.tensor([tokens]), past_key_values=kept["cache"], logits_to_keep=1)
        kept["first"] = found.logits[0, -1].float()

    @torch.inference_mode()
    def rank(items):
        codes = torch.tensor(items)
        many, read = len(codes), codes.shape[1] - 1  # the last code is only predicted
        span, total = kept["cache"].get_seq_length(), len(codes) * (codes.shape[1] - 1)
        mask = torch.full((total, span + total), torch.finfo(dtype).min, dtype=dtype)
        mask[:, :span] = 0
        own = mask[:, span:].view(many, read, many, read)
        for item in range(many):
            own[item, :, item] = torch.full((read, read), torch.finfo(dtype).min, dtype=dtype).triu(1)
        logits = model(
            codes[:, :-1].reshape(1, -1),
            past_key_values=copy.deepcopy(kept["cache"]),
            attention_mask=mask[None, None],
            position_ids=(span + torch.arange(read)).repeat(many)[None],
        ).logits
        behind = logits.view(many, read, -1).float().log_softmax(-1)
        first = kept["first"].log_softmax(-1)[codes[:, 0]]
        return (first + behind.gather(2, codes[:, 1:, None]).sum((1, 2))).tolist()

    return {"prefix": prefix, "rank": rank, "generate": lambda prompts, width: None}
