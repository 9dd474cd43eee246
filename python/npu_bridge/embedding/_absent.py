"""Classes that stand for names of the embedding service."""

from __future__ import annotations

import functools


@functools.cache
def name_of(module: str, name: str) -> type:
  """A class whose objects cannot be made; NotImplementedError then says what to use. AttributeError for private names."""
  if name.startswith("_"):
    raise AttributeError(f"module {module!r} has no attribute {name!r}")

  def refuse(cls: type, *args: object, **kwargs: object) -> None:
    raise NotImplementedError(
      f"{module}.{name} needs the embedding servers of an NPU cluster: mxrec.get_embedding_table makes tables in this process"
    )

  return type(name, (), {"__module__": module, "__new__": refuse, "__doc__": "Stands for a name of the NPU's embedding service."})
