"""What needs torch: series of calls of one compiled model."""
