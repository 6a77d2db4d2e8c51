"""The parts of scripts/vm.py: table, packages, programs, image, guest."""
