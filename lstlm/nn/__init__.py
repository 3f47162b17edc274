"""What stands below the output layer, and the network of all of them."""
