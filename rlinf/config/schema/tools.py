"""The `tools` section: workers that run the tools of agents."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.schema.base import Int, Section


class ToolsConfig(Section):
    """Workers of tools, if `cluster.component_placement` names `tools`."""

    group_name: str = Field("ToolGroup", description="Name of the group of workers.")
    max_restarts: Int = Field(
        100,
        ge=0,
        description="How often each worker is started anew when a tool has ended its process.",
    )
