"""What needs torch: evaluations under changes, and the script that proves a fix."""
