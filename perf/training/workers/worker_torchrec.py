"""A rank that trains TorchRec's static tables, row-wise or table-wise, in an environment with torchrec."""

import logging
import os

import torch
import torch.distributed as dist
from keyed import keyed_batches, trainer
from lookups import sizes

logging.disable(logging.WARNING)


def load(options):
    """Operation `train`; options as of worker_ours, and `plan`: row-wise or table-wise."""
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
    from torchrec.distributed.types import ShardingEnv
    from torchrec.optim import RowWiseAdagrad
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    torch.set_num_threads(1)
    rank, ranks = options["rank"], options["ranks"]
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", options["meeting"], rank=rank, world_size=ranks)
    tables = [
        EmbeddingConfig(
            name=f"t_{name}", embedding_dim=options["dim"], num_embeddings=size, feature_names=[name]
        )
        for name, size in sizes(options["vocabulary"]).items()
    ]
    collection = EmbeddingCollection(tables=tables, device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": 1e-3})
    sharder = EmbeddingCollectionSharder()
    ways = {
        table.name: row_wise() if options["plan"] == "row-wise" else table_wise(rank=number % ranks)
        for number, table in enumerate(tables)
    }
    plan = construct_module_sharding_plan(
        collection, ways, sharder=sharder, local_size=ranks, world_size=ranks, device_type="cpu"
    )
    environment = ShardingEnv.from_process_group(dist.group.WORLD)
    model = sharder.shard(collection, plan, environment, device=torch.device("cpu"))
    data = keyed_batches(options, lambda ids: ids)

    def look_up(batch):
        found = model(batch)
        return found.wait() if hasattr(found, "wait") else found

    return {"train": trainer(look_up, data)}
