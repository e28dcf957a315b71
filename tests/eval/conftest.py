"""The tiny model of the engine tests."""

from tests.engine.conftest import bench, tiny_path

__all__ = ["bench", "tiny_path"]
