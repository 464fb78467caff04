"""Rules between the keys of `agentloop.search` and the tools of an agent."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.checks_agents import (
    AGENTS,
    environments_are_known,
    episodes_have_room,
    mcp_servers_can_be_reached,
    messages_have_a_template,
    settings_are_those_of_tools,
    tools_are_known,
)
from rlinf.config.errors import ABSENT, Problem
from rlinf.config.plugins import UnknownPlugin, known_names

_FIELDS = ("rank", "id", "title", "text")
"""What may stand in braces in `agentloop.search.result`."""


@cross_check(AGENTS)
def searches_have_their_settings(context: CheckContext) -> Iterator[Problem]:
    """The tool `search` has a section, and the section has the tool."""
    section = context.cfg.agentloop
    named = "search" in [name.lower() for name in section.tools]
    if named and section.search is None:
        message = "is missing: agentloop.tools names search, and nothing says what is searched"
        hint = "such as {index: FILE}, or {url: http://127.0.0.1:8000/retrieve}"
        yield Problem("agentloop.search", ABSENT, message, hint)
    elif section.search is not None and not named:
        message = "is about the tool search, which agentloop.tools does not name"
        yield Problem("agentloop.search", {}, message, "name it there, or leave this out")
    elif named:
        yield from _of_section(section.search)


@cross_check(("reasoning_eval",))
def evaluated_agents_are_as_trained_ones(context: CheckContext) -> Iterator[Problem]:
    """An evaluation with an `agentloop` section has tools and room as a training has."""
    if context.cfg.agentloop is not None:
        for check in (
            tools_are_known,
            settings_are_those_of_tools,
            environments_are_known,
            mcp_servers_can_be_reached,
            episodes_have_room,
            messages_have_a_template,
            searches_have_their_settings,
        ):
            yield from check(context)


def _of_section(search: Any) -> Iterator[Problem]:
    place = "agentloop.search"
    if search.url is not None:
        for key in ("index", "embeddings", "encoder"):
            if search[key] is not None:
                message = "is for a search of this run, and agentloop.search.url asks a service"
                yield Problem(f"{place}.{key}", search[key], message, "keep one of them")
        if search.inline:
            message = "would let all episodes wait for the service of agentloop.search.url"
            yield Problem(f"{place}.inline", True, message, "leave it out")
    elif (search.embeddings is None) != (search.encoder is None):
        given, missing = ("embeddings", "encoder")[:: 1 if search.encoder is None else -1]
        message = f"is missing: {given} is given, and a dense index needs both"
        hint = "a name of register_query_encoder" if missing == "encoder" else "a file of NumPy"
        yield Problem(f"{place}.{missing}", ABSENT, message, hint)
    elif search.encoder is not None and search.encoder.lower() not in known_names("query_encoder"):
        unknown = UnknownPlugin("query_encoder", search.encoder)
        yield Problem(f"{place}.encoder", search.encoder, str(unknown), unknown.hint)
    if wrong := _wrong_template(search.result):
        yield Problem(f"{place}.result", search.result, *wrong)


def _wrong_template(template: str) -> tuple[str, str] | None:
    """Return what is wrong with the template of a result, and what to do; None if nothing is."""
    known = ", ".join(f"{{{field}}}" for field in _FIELDS)
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        return f"is no template: {error}", f"fields are {known}; write {{{{ and }}}} for braces"
    for _, field, form, conversion in parts:
        if field is not None and (field not in _FIELDS or form or conversion):
            return f"has the field {{{field}}}, which is not known", f"fields are {known}"
    return None
