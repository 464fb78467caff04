"""A snapshot that could not be written is told, whatever kept it from being written."""

from __future__ import annotations

import pytest

from rlinf.workers.checkpointed import _Writing


class NoException(BaseException):
    """torch.distributed.checkpoint raises such ones."""


@pytest.mark.parametrize("error", [OSError(28, "full"), NoException("full")])
def test_whatever_is_raised_is_kept(error):
    def write() -> None:
        raise error

    writing = _Writing("folder", write)
    assert writing.done(wait=True)
    assert writing.error is error
