"""The outside worlds, one module or package each; they return ``model`` types and know nothing of metrics or HTTP."""
