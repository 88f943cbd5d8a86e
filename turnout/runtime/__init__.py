"""The driver's side, once for every track: the attempt loop, merging of reports, retries and callbacks.

`run` is that loop, and `worker` what a rank runs. Nothing is imported here, as a rank needs the latter alone.
"""
