"""Whole record batches, by their headers: index, checksum, admission and restamp, without opening one."""
