"""The tiny model of the engine tests, for contracts that need one."""

from tests.engine.conftest import bench, tiny_path

__all__ = ["bench", "tiny_path"]
