"""The Ray track: a rank is an actor in the run's placement group, and tells the driver what happens by itself.

`controller` keeps what lasts for a run, the placement group; `group` has the actors of one attempt, on the loop of the
thread that called `fit()`; `actor` is what such an actor does, and `output` how what it prints comes home. Nothing is
imported here, as every rank imports this package and needs the latter two alone.
"""
