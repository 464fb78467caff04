"""Any environment with Gymnasium's interface: registered ids, classes and functions that make
one."""
