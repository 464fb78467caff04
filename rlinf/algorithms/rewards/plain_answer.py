"""Whether an answer can be evaluated as Python and do nothing but be a value or a formula.

Some scorers of other packages hand answers to `eval`, or to a parser that does. There an answer
could read the right one from the scorer, or change the scorer for all that come after it.
"""

from __future__ import annotations

import ast
import re

_FUNCTIONS = frozenset(
    """Abs Max Min Rational Integer abs max min pow round ceiling floor sign factorial binomial
    gamma sqrt cbrt root exp log ln log10 erf sin cos tan sec csc cot asin acos atan atan2 sinh cosh
    tanh asinh acosh atanh arcsin arccos arctan""".split()
)
"""What may be called: functions of numbers."""

_ALLOWED = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_FACTORIAL = re.compile(r"!(?!=)")
_MOST_CHARACTERS = 20_000


def is_plain(answer: str) -> bool:
    """Return whether an answer is a value, a formula, or no Python at all.

    Texts that Python cannot parse are evaluated by nobody. Factorials such as `3!` are left out
    before that, because parsers of formulas understand them.
    """
    if len(answer) > _MOST_CHARACTERS:
        return False
    return all(_is_harmless(text) for text in {answer, _FACTORIAL.sub("", answer)})


def _is_harmless(text: str) -> bool:
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError):
        return True
    except (RecursionError, MemoryError):
        return False
    return all(isinstance(node, _ALLOWED) and _is_allowed(node) for node in nodes)


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.Call):
        # A text would be parsed once more.
        texts = any(
            isinstance(part, ast.Constant) and isinstance(part.value, str | bytes)
            for argument in node.args
            for part in ast.walk(argument)
        )
        named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        return named and not texts and not node.keywords
    return True
