"""EnvPool: environments in C++ that step in threads, MetaWorld's 50 tasks among them."""
