"""Target topics: creation, policy, configuration and registration of mirrors."""
