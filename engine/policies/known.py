"""Imports every policy file of this package, so that each joins the registry by existing."""

from __future__ import annotations

import importlib
import pkgutil

import engine.policies
from engine.policies.base import POLICIES, make_policy

for module in pkgutil.iter_modules(engine.policies.__path__):
    importlib.import_module(f"engine.policies.{module.name}")

__all__ = ["POLICIES", "make_policy"]
