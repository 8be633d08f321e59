"""Which clusters and topics feed which, by the mirror, archive and restore files of a folder."""
