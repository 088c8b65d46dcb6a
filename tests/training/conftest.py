"""The room's tests are many tiny tensors: one thread each is fastest and keeps sums in one order."""

from __future__ import annotations

import faiss
import torch

torch.set_num_threads(1)
faiss.omp_set_num_threads(1)
