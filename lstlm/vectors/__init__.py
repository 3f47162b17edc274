"""Word vectors: look-up and nearest neighbours, and the files that hold them."""

from lstlm.vectors.table import Vectors, load_vectors, nearest, unit_rows
from lstlm.vectors.writers import write_projector

__all__ = ["Vectors", "load_vectors", "nearest", "unit_rows", "write_projector"]
