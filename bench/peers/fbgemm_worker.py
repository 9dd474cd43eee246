"""A contestant of run.py: FBGEMM's table-batched embedding on the CPU, forward + backward with fused Adagrad, dense ids (no hash).

usage: fbgemm_worker.py --keys FOLDER --dim 16 [--threads 1]

Sets: dense/STREAM (SUM over bags of one id), pooled/STREAM (SUM over bags of 8 ids).
"""

import argparse
import os
import pathlib

from keys import BATCH
from worker import Channel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--keys", type=pathlib.Path, required=True)
parser.add_argument("--dim", type=int, default=16)
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()
channel = Channel()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(args.threads)

import fbgemm_gpu
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

torch.set_num_threads(args.threads)
rows = (args.keys / "all_keys.bin").stat().st_size // 8
streams = {
  name: torch.from_numpy(np.fromfile(args.keys / f"{name}_ids.bin", "<i8").reshape(-1, BATCH)) for name in ("uniform", "zipf")
}
table = SplitTableBatchedEmbeddingBagsCodegen(
  [(rows, args.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
  optimizer=EmbOptimType.EXACT_ADAGRAD,
  pooling_mode=PoolingMode.SUM,
  learning_rate=0.1,
  eps=1e-8,
)
table.init_embedding_weights_uniform(-0.01, 0.01)
BAG = {"dense": 1, "pooled": 8}
offsets = {mode: torch.arange(0, BATCH + 1, ids, dtype=torch.int64) for mode, ids in BAG.items()}
gradients = {mode: torch.full((BATCH // ids, args.dim), 0.01) for mode, ids in BAG.items()}


def step(ids: torch.Tensor, mode: str) -> None:
  """Forward and backward with the fused update."""
  table(ids, offsets[mode]).backward(gradients[mode])


def run(name: str, batch: int) -> None:
  """One batch of a set."""
  mode, stream = name.split("/")
  step(streams[stream][batch % len(streams[stream])], mode)


for begin in range(0, rows, BATCH):  # touches every row and its state
  step(torch.arange(begin, begin + BATCH, dtype=torch.int64) % rows, "dense")
channel.serve({"fbgemm": fbgemm_gpu.__version__, "torch": torch.__version__, "rows": rows}, run)
