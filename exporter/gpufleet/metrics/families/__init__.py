"""The families of the catalogue by subject. Data only: what a name means, who reports it, whether core shows it.

A name, once released, is neither changed nor given another meaning: add a new one beside it.
"""
