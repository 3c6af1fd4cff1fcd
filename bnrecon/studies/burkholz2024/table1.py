"""Table 1 of Burkholz 2024: VGG18 targets on CIFAR-10, rebuilt."""

from bnrecon.studies.burkholz2024.reconstruction import table

PART = table(1, "CIFAR-10")
