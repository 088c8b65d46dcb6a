"""A rank that trains plain torch tables under DistributedDataParallel: all rows on every rank, sparse gradients."""

import time

import torch
import torch.distributed as dist
from lookups import FEATURES, batches, sizes
from torch.nn.parallel import DistributedDataParallel


class Tables(torch.nn.Module):
    """One table per feature; half the sum of squares of what is looked up, the loss that every peer has."""

    def __init__(self, vocabulary, dim):
        super().__init__()
        self.tables = torch.nn.ModuleDict(
            {name: torch.nn.Embedding(size, dim, sparse=True) for name, size in sizes(vocabulary).items()}
        )

    def forward(self, ids):
        """ids: per feature int64[total]."""
        return sum((self.tables[name](ids[name]) ** 2).sum() for name in FEATURES) * 0.5


def load(options):
    """Operation `train`; options as of worker_ours."""
    torch.set_num_threads(1)
    rank, ranks = options["rank"], options["ranks"]
    dist.init_process_group("gloo", options["meeting"], rank=rank, world_size=ranks)
    model = DistributedDataParallel(Tables(options["vocabulary"], options["dim"]))
    optimizer = torch.optim.Adagrad(model.parameters(), 1e-3)
    data = [
        {name: torch.from_numpy(each[name][0]) for name in FEATURES}
        for each in batches(options["vocabulary"], options["sequences"], options["steps"], rank)
    ]

    def train(first, last):
        """Steps [first, last); all ranks begin and end together."""
        dist.barrier()
        begun = time.perf_counter()
        for batch in data[first:last]:
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
        dist.barrier()
        return {"seconds": time.perf_counter() - begun}

    return {"train": train}
