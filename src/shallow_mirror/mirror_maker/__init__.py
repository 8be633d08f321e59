"""For the cli: configurations of MirrorMaker 2 as mirror files."""
