"""The parts of scripts/vm.py and kernels.py: table, packages, programs, image, guest."""
