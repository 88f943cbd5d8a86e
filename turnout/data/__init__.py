"""Data: how the trainer's data sets are dealt to ranks.

`shards` is what the rest of Turnout calls, and `site` what it tells of where the ranks are; `arrow` and `ray_data` are
the two kinds of data that can be cut. Nothing is imported here, as a run without data sets needs none of it.
"""
