"""What GPU time costs and who is billed for it: prices from a price book, and totals by holder. Pure, without any I/O
but the one file that ``price_book`` reads.
"""
