"""``gpufleet run -- PROGRAM``: stands before a program, and tells a hardware fault's failure from the program's own.

It imports the standard library and nothing else, so that it starts in milliseconds in whatever image the program has.
``child`` runs the program, ``asking`` asks the node's exporter and the quarantine, ``verdict`` decides (pure).
"""
