"""``python -m turnout.compat.ray_train``: runs a program of Ray Train's on Turnout."""

from turnout.compat.ray_train.command import main

main()
