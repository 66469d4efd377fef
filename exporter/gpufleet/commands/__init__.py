"""The commands of the console script, one module each; they wire the other packages together and talk to people.

A command is ``main(argv) -> exit status``. Only ``cli`` imports from here, and of the commands only the one asked for.
"""
