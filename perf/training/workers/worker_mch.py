"""A rank that trains TorchRec's managed collisions (MCH), in an environment with torchrec.

Ids that are not in its map yet share one row until the next update of the map: `answered` counts those that do not.
"""

import logging
import os

import torch
import torch.distributed as dist
from keyed import keyed_batches, trainer
from lookups import sizes

logging.disable(logging.WARNING)


def load(options):
    """Operations `train` and `answered`; options as of worker_ours, and `interval`: steps between updates."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv
    from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
    from torchrec.modules.mc_modules import (
        DistanceLFU_EvictionPolicy,
        ManagedCollisionCollection,
        MCHManagedCollisionModule,
    )
    from torchrec.optim import RowWiseAdagrad
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    # At its first update it calls an operation that only CUDA has; the same on a CPU:
    def reset(self, pruned_indices, pruned_indices_offsets, logical_table_ids, buffer_ids):
        self.split_optimizer_states()[int(logical_table_ids[0])][0][pruned_indices] = 0

    SplitTableBatchedEmbeddingBagsCodegen.reset_embedding_weight_momentum = reset
    torch.set_num_threads(1)
    rank, ranks, slots = options["rank"], options["ranks"], sizes(options["vocabulary"])
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", options["meeting"], rank=rank, world_size=ranks)

    def tables(dim):
        return [
            EmbeddingConfig(name=f"t_{name}", embedding_dim=dim, num_embeddings=size, feature_names=[name])
            for name, size in slots.items()
        ]

    def maps(device, configs):
        made = {
            each.name: MCHManagedCollisionModule(
                zch_size=each.num_embeddings,
                device=device,
                eviction_policy=DistanceLFU_EvictionPolicy(),
                eviction_interval=options["interval"],
                input_hash_size=2**62,
            )
            for each in configs
        }
        return ManagedCollisionCollection(made, configs)

    meta, configs = torch.device("meta"), tables(options["dim"])
    collection = EmbeddingCollection(tables=configs, device=meta)
    whole = ManagedCollisionEmbeddingCollection(
        collection, maps(meta, configs), return_remapped_features=False
    )
    apply_optimizer_in_backward(RowWiseAdagrad, whole._embedding_module.parameters(), {"lr": 1e-3})
    sharder = ManagedCollisionEmbeddingCollectionSharder()
    plan = construct_module_sharding_plan(
        whole, {each.name: row_wise() for each in configs}, sharder=sharder, local_size=ranks, world_size=ranks,
        device_type="cpu",
    )  # fmt: skip
    environment = ShardingEnv.from_process_group(dist.group.WORLD)
    model = sharder.shard(whole, plan, environment, device=torch.device("cpu"))
    # Spread over 40 bits: the map takes ids for sorted numbers.
    data = keyed_batches(options, lambda ids: (ids * 7919 + 13) % 2**40)

    def look_up(batch):
        """Maps are updated every `interval` steps."""
        found = model(batch)
        found = found[0] if isinstance(found, tuple) else found
        found = found.wait() if hasattr(found, "wait") else found
        return found[0] if isinstance(found, tuple) else found

    def answered(first, last):
        """Of the look-ups in steps [first, last), those by a row of their own, and all; maps begin empty at step 0."""
        alone, own, total = maps(torch.device("cpu"), tables(1)), 0, 0
        for number, batch in enumerate(data[:last]):
            mapped = alone(batch)
            if number >= first:
                for name, size in slots.items():
                    rows = mapped[name].values()
                    own, total = own + int((rows != size - 1).sum()), total + rows.numel()
        return [own, total]

    return {"train": trainer(look_up, data), "answered": answered}
