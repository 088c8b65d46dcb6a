"""What TorchRec's ranks share: look-ups as it takes them, and the clock around their steps."""

import time

import numpy as np
import torch
import torch.distributed as dist
from lookups import FEATURES, batches


def keyed_batches(options, ids):
    """A KeyedJaggedTensor per step of this rank's look-ups; `ids` turns raw ids int64 into those of the tables."""
    from torchrec import KeyedJaggedTensor

    return [
        KeyedJaggedTensor.from_lengths_sync(
            keys=list(FEATURES),
            values=torch.from_numpy(ids(np.concatenate([each[name][0] for name in FEATURES]))),
            lengths=torch.from_numpy(np.concatenate([each[name][1] for name in FEATURES])).int(),
        )
        for each in batches(options["vocabulary"], options["sequences"], options["steps"], options["rank"])
    ]


def trainer(look_up, data):
    """Operation `train` of steps [first, last): all ranks begin and end together; the optimizer runs in backward.

    `look_up` takes a batch and gives an embedding per feature; the loss is half the sum of squares.
    """

    def train(first, last):
        dist.barrier()
        begun = time.perf_counter()
        for batch in data[first:last]:
            found = look_up(batch)
            (sum((found[name].values() ** 2).sum() for name in FEATURES) * 0.5).backward()
        dist.barrier()
        return {"seconds": time.perf_counter() - begun}

    return train
