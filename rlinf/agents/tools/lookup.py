"""A tool that looks facts up: generated ones, so that no model can know them beforehand.

A product such as `red lamp` is made by a company such as `north works`, and a company is in a town.
Who makes what, and where, follows from the names by a hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import product

from rlinf.agents.tools.tool import ToolError, tool

PRODUCTS = (
    "red blue green black white gold pink grey plain round thin wide soft hard old new".split(),
    "lamp chair table clock shelf vase rug desk bowl plate knife spoon stool bench mirror "
    "kettle".split(),
)
"""First and second words of products."""
COMPANIES = (
    "north south east west upper lower royal grand first prime united general central metro urban "
    "delta".split(),
    "works mills craft trade goods house labs forge union group press depot yards stores guild "
    "foundry".split(),
)
"""First and second words of companies."""
TOWNS = (
    "oslo rome paris cairo lima quito delhi tokyo seoul hanoi perth sofia milan bonn kyoto turin"
).split()

WORDS = [*PRODUCTS[0], *PRODUCTS[1], *COMPANIES[0], *COMPANIES[1], *TOWNS]
"""All words of facts, for a tokenizer."""


HELD_OUT = 0.2
"""Share of the products, and of the companies, that only validation asks for."""


@cache
def products(held_out: bool) -> tuple[str, ...]:
    """Return the products that are held out for validation, or the others."""
    return _names(PRODUCTS, held_out)


@cache
def companies(held_out: bool) -> tuple[str, ...]:
    """Return the companies that make products that are held out, or the others."""
    return _names(COMPANIES, held_out)


def maker(item: str) -> str:
    """Return the company that makes a product; one that is held out for one that is."""
    known = companies(_is_held_out(item))
    return known[_number("maker", item) % len(known)]


def town(company: str) -> str:
    """Return the town that a company is in."""
    return TOWNS[_number("town", company) % len(TOWNS)]


@tool(inline=True)
def lookup(name: str) -> str:
    """Look up who makes a product, or where a company is.

    Args:
        name: Of a product or of a company.
    """
    found = _facts().get("".join(name.split()))
    if found is None:
        raise ToolError(f"there is nothing about {name}")
    return found


@cache
def _facts() -> dict[str, str]:
    facts = {item: maker(item) for out in (False, True) for item in products(out)}
    facts |= {company: town(company) for out in (False, True) for company in companies(out)}
    return {name.replace(" ", ""): fact for name, fact in facts.items()}


def _names(words: tuple[Sequence[str], Sequence[str]], held_out: bool) -> tuple[str, ...]:
    every = (" ".join(pair) for pair in product(*words))
    return tuple(name for name in every if _is_held_out(name) == held_out)


def _is_held_out(name: str) -> bool:
    return _number("held out", name) < HELD_OUT * 2**32


def _number(*parts: str) -> int:
    """Return a number below 2**32 that follows from texts."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "little")
