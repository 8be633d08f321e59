"""The commands of the command line, a file each; `shallow_mirror.cli` puts them together."""
