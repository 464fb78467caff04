"""Workers of several components say where they run, and with what; printed as one JSON object.

Arguments: the `cluster` section of a config, as JSON. Its placement names the components.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from rlinf.config import validate_cfg
from rlinf.scheduler import Cluster, HybridComponentPlacement, Worker


class Witness(Worker):
    """Says where it is."""

    def facts(self, names: list[str]) -> dict[str, Any]:
        """Return the host, the interpreter, and some variables of this process."""
        return {
            "host": socket.gethostname(),
            "python": sys.executable,
            "prefix": sys.prefix,
            "rank": self._rank,
            "env": {name: os.environ.get(name) for name in names},
        }


def main() -> None:
    section, names = json.loads(sys.argv[1]), sys.argv[2:]
    cfg = validate_cfg({"runner": {"task_type": "workers"}, "cluster": section})
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        groups = {
            component: Witness.create_group().launch(
                cluster, placement_strategy=placement.get_strategy(component), name=component
            )
            for component in section["component_placement"]
        }
        said = {name: group.facts(names).wait() for name, group in groups.items()}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
