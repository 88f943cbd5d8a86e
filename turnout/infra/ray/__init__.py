"""Groups on a Ray cluster: an actor for each worker, where its devices are.

`resource_manager` places the groups of a program, `map` is what is then known of them everywhere, `workers` is the
driver's side of one object, `actor` the worker's. Nothing is imported here, as every worker imports this package and
needs a part of it alone.
"""
