"""Verifies the stack with its real services: see scripts/verify_stack.sh."""
