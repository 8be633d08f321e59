"""Permissions and quotas: compared, copied, followed and shown."""
