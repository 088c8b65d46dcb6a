"""CTranslate2: `generate_batch` with beams, fp32: on CPUs it has no bf16."""

import json
from pathlib import Path

import ctranslate2


def load(options):
    """Operation `generate`."""
    folder = Path(options["model"])
    words = json.loads((folder / "vocabulary.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    # The converter writes null for a word that the tokenizer has not, which the loader does not read.
    special = {name: config[name] or words[0] for name in ("bos_token", "eos_token", "unk_token")}
    (folder / "config.json").write_text(json.dumps(config | special))
    generator = ctranslate2.Generator(
        options["model"], device="cpu", compute_type="float32", intra_threads=options["threads"]
    )

    def generate(prompts, width):
        found = generator.generate_batch(
            [[words[token] for token in prompt] for prompt in prompts],
            beam_size=width,
            num_hypotheses=width,
            max_length=options["levels"],
            min_length=options["levels"],
            end_token=[],
            include_prompt_in_result=False,
        )
        return [answer.sequences_ids for answer in found]

    return {"generate": generate}
