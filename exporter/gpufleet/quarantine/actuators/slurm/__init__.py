"""Slurm, through its own commands: ``reading`` understands what they print (pure), ``commands`` runs them."""
