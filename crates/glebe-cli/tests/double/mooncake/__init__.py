"""Stands in for the package of Mooncake in tests of `glebe lend`."""
