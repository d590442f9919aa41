"""compilewatch: a monitor of PyTorch compile-compatibility."""

__version__ = "0.1.0"
