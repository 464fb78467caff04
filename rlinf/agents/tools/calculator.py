"""A calculator: arithmetic on numbers of bounded size, and nothing else."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

from rlinf.agents.tools.tool import ToolError, tool

_MOST_CHARACTERS, _MOST_NODES, _MOST_BITS = 256, 128, 512
_CHARACTERS = frozenset("0123456789.eE_+-*/%() \t\n")
"""Others are refused unread: Python's parser warns of some, such as the letters of `1or 2`."""

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


@tool(inline=True)
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, parentheses and the operators + - * / // % **.
    """
    return shown(evaluate(expression))


def evaluate(expression: str) -> Number:
    """Return the value of an expression.

    Raises:
        ToolError: it is too long, is no arithmetic, or its value is too large or not a number.
    """
    if len(expression) > _MOST_CHARACTERS:
        raise ToolError(
            f"the expression has {len(expression)} characters; at most {_MOST_CHARACTERS} are read"
        )
    expression = expression.strip()
    other = next((each for each in expression if each not in _CHARACTERS), None)
    if other is not None:
        raise ToolError(
            f"cannot read {expression!r} because of {other!r}; "
            "numbers, parentheses and + - * / // % ** are read"
        )
    try:
        tree = ast.parse(expression, mode="eval")
        if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
            raise ToolError("the expression has too many operations; split it")
        return _value(tree.body)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ToolError(f"cannot read {expression!r}") from error
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    except OverflowError as error:
        raise ToolError("the result is too large") from error


def shown(value: Number) -> str:
    """Return a number as text: whole numbers without a point, others with up to ten digits."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _check_power(left, right)
        return _bounded(_BINARY[type(node.op)](left, right))
    raise ToolError(f"only numbers and + - * / // % ** can be evaluated, not {ast.unparse(node)!r}")


def _check_power(base: Number, exponent: Number) -> None:
    """Refuse powers whose computation alone would take long."""
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and base.bit_length() * abs(exponent) > _MOST_BITS:
        raise ToolError("the result is too large")


def _bounded(value: Number | complex) -> Number:
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ToolError("the result is not a number")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ToolError("the result is too large")
    return value
