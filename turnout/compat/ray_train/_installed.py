"""Importing this throws the switch: it is what workers import before they are sent anything of the user's."""

from turnout.compat.ray_train.switch import install

install()
