"""The contract of a controller: every behaviour of a train function, stated once and run over every track.

The author of a controller runs it over their own with one line::

    pytest --pyargs turnout.testing.contract --turnout-controller=NAME
"""
