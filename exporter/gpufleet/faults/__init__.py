"""What a fault means: the catalogue of the driver's codes. Pure: no input, no output, no threads.

``catalogue.entry_of`` says what one event means, ``catalogue.class_of`` how its code is classed; ``xids``, ``sxids``,
``nvlink5`` and ``nvlink_registers`` hold the facts. The rows are written in the project's own words, each with its
source; where sources contradict each other the comment beside the row says how it was settled.
"""
