"""What needs torch: evaluations under changes, and the script that verifies a fix."""
