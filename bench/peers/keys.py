"""Key files that all contestants read: fixed seeds, raw little-endian int64.

usage: keys.py FOLDER [--keys 10000000] [--batches 128]

  all_keys.bin                       the key of dense id 0, 1, ...: 63-bit hashes, all different
  uniform_ids.bin, zipf_ids.bin      streams of dense ids, batches of 65,536; zipf: P(rank r) ~ r^-1.05, ranks permuted to ids
  uniform_keys.bin, zipf_keys.bin    the same streams as keys
"""

import argparse
import json
import pathlib

import numpy as np

BATCH = 65536
ALPHA = 1.05
SEED = 20260


def mix(x: np.ndarray) -> np.ndarray:
  """A bijection on 64 bits (splitmix64's finisher)."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def distinct_keys(count: int) -> np.ndarray:
  """int64 [count]: values below 2^63, all different."""
  mixed = mix(np.arange(1, int(count * 2.1) + 1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
  even = mixed[(mixed & np.uint64(1)) == 0][:count]  # so that the shift loses nothing
  return (even >> np.uint64(1)).astype(np.int64)


def make(folder: pathlib.Path, count: int, batches: int) -> None:
  """Writes the files, unless the folder holds them already."""
  meta = {"keys": count, "batches": batches, "seed": SEED, "alpha": ALPHA}
  done = folder / "meta.json"
  if done.exists() and json.loads(done.read_text()) == meta:
    return
  folder.mkdir(parents=True, exist_ok=True)
  done.unlink(missing_ok=True)
  random = np.random.Generator(np.random.PCG64(SEED))
  keys = distinct_keys(count)
  uniform = random.integers(0, count, batches * BATCH, dtype=np.int64)
  cdf = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -ALPHA)
  ranks = np.searchsorted(cdf, random.random(batches * BATCH) * cdf[-1])
  zipf = random.permutation(count)[np.minimum(ranks, count - 1)].astype(np.int64)
  files = {"all_keys": keys, "uniform_ids": uniform, "uniform_keys": keys[uniform], "zipf_ids": zipf, "zipf_keys": keys[zipf]}
  for name, values in files.items():
    values.astype("<i8").tofile(folder / f"{name}.bin")
  done.write_text(json.dumps(meta))


def main() -> None:
  """Makes the files that the arguments name."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--keys", type=int, default=10_000_000)
  parser.add_argument("--batches", type=int, default=128)
  args = parser.parse_args()
  make(args.folder, args.keys, args.batches)


if __name__ == "__main__":
  main()
