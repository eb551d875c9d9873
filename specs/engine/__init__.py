"""The arrays and memories behind `specs.checker.explore`."""
