"""What single targets found beyond their verdict: one file a target."""
