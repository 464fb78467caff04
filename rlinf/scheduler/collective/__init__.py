"""Moving data between workers."""
