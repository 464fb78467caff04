"""Several hosts on one machine, to try and to test what a cluster does."""

from rlinf.testbed.bed import Host, HostBed, HostBedError, unavailable

__all__ = ["Host", "HostBed", "HostBedError", "unavailable"]
