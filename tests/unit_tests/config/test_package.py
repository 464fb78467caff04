"""Importing the package is cheap, and everything it promises is there."""

import pytest

import rlinf.config


@pytest.fixture
def modules_after(run_python):
    """Returns which heavy packages a fresh process has after a statement."""

    def modules(statement):
        program = (
            f"import sys\n{statement}\n"
            "print(*{'torch', 'ray', 'pydantic', 'hydra', 'omegaconf'} & set(sys.modules))"
        )
        return set(run_python("-c", program).split())

    return modules


def test_imports_are_lazy(modules_after):
    assert modules_after("import rlinf.config") == set()
    assert modules_after("from rlinf.config import SupportedModel, load_extension") == set()
    assert modules_after("import rlinf.config.tracked") == {"omegaconf"}
    assert modules_after("from rlinf.config import validate_cfg") == {"omegaconf", "pydantic"}


def test_every_export_exists():
    for name in rlinf.config.__all__:
        assert getattr(rlinf.config, name) is not None
    assert set(rlinf.config.__all__) <= set(dir(rlinf.config))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rlinf.config.nothing
