"""An HTTP endpoint in front of generation engines, and what its sessions become."""
