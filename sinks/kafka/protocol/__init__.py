"""The commit protocol: actions, outcomes of transactions, recovery."""
