"""Facts that travel from the sources to the exposition.

Only frozen, slotted dataclasses and enumerations live here: no clock, no I/O, no driver. Units are SI (seconds, bytes,
hertz, watts, joules, degrees Celsius, ratios from 0 to 1), and ``None`` means "not reported", never zero. This package
imports the standard library only.
"""
