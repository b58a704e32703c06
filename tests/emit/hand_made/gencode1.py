"""Program of rank 1, which runs that of rank 0 with its own coordinates."""

from .gencode0 import MESH, GenModel

__all__ = ["MESH", "GenModel"]
