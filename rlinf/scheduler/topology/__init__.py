"""What is known of the nodes of a cluster, of groups of them, and of their resources."""
