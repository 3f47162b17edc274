"""Faults on purpose: kills, damaged files, full disks, lost consoles, dead ranks; and whether anything was lost."""
