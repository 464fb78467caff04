"""Any environment with Gymnasium's interface: ids, classes, and functions that make one."""
