"""Which names a check takes from the program, and which are those of modules."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator

_PACKAGES = {
    name: name for name in ("numpy", "pandas", "scipy", "sympy", "networkx", "torch", "pytest")
} | {"np": "numpy", "pd": "pandas", "nx": "networkx"}
"""Packages by the names under which programs and checks know them."""

_HELPERS = frozenset(
    """isclose allclose array_equal array_equiv approx assert_allclose assert_almost_equal
    assert_approx_equal assert_array_almost_equal assert_array_equal assert_equal deepcopy Counter
    Decimal Fraction OrderedDict defaultdict deque inf nan pi""".split()
)
"""Names with which checks compare values, or make those that they compare with."""


def foreign_names(check: str) -> tuple[list[str], dict[str, str]]:
    """Return the names that a check takes from the program, and modules by the name of each.

    A name that is used only as `name.something` is a module if there is one of that name.

    Raises:
        SyntaxError: It is not Python.
    """
    top = symtable.symtable(check, "check.py", "exec")
    own = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    used = {name for table in _tables(top) for name in _globals(table)} - own
    # A `__builtins__` of the program would bring its own `len`.
    used -= {name for name in used if hasattr(builtins, name) or name.startswith("__")}
    nodes = list(ast.walk(ast.parse(check)))
    with_dot = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    alone = {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in with_dot}
    modules = {name: name for name in used - alone if name in sys.stdlib_module_names}
    modules |= {name: _PACKAGES[name] for name in used - alone if name in _PACKAGES}
    return sorted(used - modules.keys()), dict(sorted(modules.items()))


def helpers_of_program(check: str, names: list[str]) -> list[str]:
    """Return names of the program by which it could call any value the right one.

    One that is alone is what the check is about, such as a function `isclose` that was asked for.

    Args:
        check: Python.
        names: Those that it takes from the program.
    """
    imports = [node for node in ast.walk(ast.parse(check)) if isinstance(node, ast.ImportFrom)]
    if any(alias.name == "*" for node in imports for alias in node.names):
        return []
    helpers = [name for name in names if name in _HELPERS]
    return helpers if len(helpers) < len(names) else []


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from _tables(inner)


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()):
            yield symbol.get_name()
