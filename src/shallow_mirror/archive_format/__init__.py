"""Pure: the format of an archive's objects: their names, their footer, and where record batches lie in them."""
