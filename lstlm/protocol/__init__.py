"""What every output layer shares: how it is called, how its arguments are checked, how a vocabulary is scanned."""
