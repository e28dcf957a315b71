"""Imports every reader of this package, so that each joins the registry by existing."""

from __future__ import annotations

import importlib
import pkgutil

import eval.datasets
from eval.datasets.base import DATASETS

for module in pkgutil.iter_modules(eval.datasets.__path__):
    importlib.import_module(f"eval.datasets.{module.name}")

__all__ = ["DATASETS"]
