"""Everywhere: reading an archive: its rows, the batches behind them, and single records."""
