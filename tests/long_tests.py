"""Tests that take minutes, or copy tens of gigabytes, run with `RLINF_ALL_TESTS=1` only."""

from __future__ import annotations

import os

import pytest

ALL_TESTS = os.environ.get("RLINF_ALL_TESTS") == "1"

long_test = pytest.mark.skipif(not ALL_TESTS, reason="takes long: set RLINF_ALL_TESTS=1")
