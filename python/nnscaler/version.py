"""The version of the package, which is the core's."""

try:
    from nnscaler._core import __version__
except ImportError:  # the core is not built
    __version__ = "0+unknown"
