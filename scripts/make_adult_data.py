#!/usr/bin/env python3
"""Makes examples/data/adult.{train,test}.csv.xz from a copy of the UCI Adult files.

    python scripts/make_adult_data.py FOLDER [--out examples/data]

FOLDER holds `adult.data` and `adult.test`, with or without a header line. What changes on the way: one header line with our column
names, no blanks after commas, `?` (missing) becomes an empty field, the label becomes 0 (<=50K) or 1 (>50K), the dot that ends
every label of the test file goes. Row order and values stay. The same input and liblzma give the same bytes.

Exit codes: 0 written, 1 the input is not the Adult set (the message names file, line, expected, found).
"""

from __future__ import annotations

import argparse
import lzma
import sys
from pathlib import Path

COLUMNS = (
  "age",
  "workclass",
  "fnlwgt",
  "education",
  "education_num",
  "marital_status",
  "occupation",
  "relationship",
  "race",
  "sex",
  "capital_gain",
  "capital_loss",
  "hours_per_week",
  "native_country",
  "label",
)
NUMERIC = frozenset(("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"))
LABELS = {"<=50K": "0", ">50K": "1"}
# part -> (input file, rows, rows with label >50K): the counts of the official split.
PARTS = {"train": ("adult.data", 32561, 7841), "test": ("adult.test", 16281, 3846)}


def convert(text: str, file: str) -> list[str]:
  """Returns the rows of one input file as comma-separated lines. ValueError names file and line."""
  lines = []
  for number, line in enumerate(text.splitlines(), start=1):
    fields = [field.strip() for field in line.split(",")]
    is_blank = fields == [""]
    is_header = number == 1 and fields[0] == "age"
    is_split_note = number == 1 and line.startswith("|")  # UCI's own test file begins with "|1x3 Cross validator"
    if is_blank or is_header or is_split_note:
      continue
    if len(fields) != len(COLUMNS):
      raise ValueError(f"{file}, line {number}: expected {len(COLUMNS)} fields, found {len(fields)}")
    row = {column: "" if field == "?" else field for column, field in zip(COLUMNS, fields)}
    for column in NUMERIC:
      if not row[column].isdigit():
        raise ValueError(f"{file}, line {number}: expected a whole number in {column}, found {row[column]!r}")
    label = row["label"].rstrip(".")
    if label not in LABELS:
      raise ValueError(f"{file}, line {number}: expected a label of {sorted(LABELS)}, found {row['label']!r}")
    row["label"] = LABELS[label]
    lines.append(",".join(row.values()))
  return lines


def main() -> int:
  """Converts both parts. Returns the exit code."""
  parser = argparse.ArgumentParser(description="Makes the compressed Adult files of examples/data from a copy of the UCI files.")
  parser.add_argument("folder", type=Path, help="folder with adult.data and adult.test")
  parser.add_argument(
    "--out",
    type=Path,
    default=Path(__file__).resolve().parent.parent / "examples" / "data",
    help="where the two files go (default: examples/data)",
  )
  args = parser.parse_args()
  try:
    for part, (file, row_count, positive_count) in PARTS.items():
      path = args.folder / file
      lines = convert(path.read_text(encoding="ascii"), str(path))
      positives = sum(line.endswith(",1") for line in lines)
      if (len(lines), positives) != (row_count, positive_count):
        raise ValueError(f"{path}: expected {row_count} rows, {positive_count} of them >50K; found {len(lines)}, {positives}")
      data = ("\n".join([",".join(COLUMNS), *lines]) + "\n").encode("ascii")
      packed = lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME)
      target = args.out / f"adult.{part}.csv.xz"
      target.write_bytes(packed)
      print(f"{target.name}: {len(lines)} rows, {len(packed)} bytes (unpacked {len(data)})")
  except (OSError, ValueError) as error:
    print(f"make_adult_data: {error}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())
