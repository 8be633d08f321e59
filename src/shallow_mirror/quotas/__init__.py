"""Quotas of users and client ids of the source cluster: which of them its target lacks."""
