"""Which job of Slurm has which GPU or MIG slice, from the files that prologs write on the node.

Three kinds of directories are read: gpufleet's own (deploy/slurm), the one of dcgm-exporter's HPC job mapping and the
one of Princeton's jobstats. ``formats`` knows what a file's name and content mean and is pure; ``jobs`` knows which
jobs are over; ``files`` reads the directories. No command of Slurm is run and the controller is never asked.
"""
