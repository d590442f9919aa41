"""Models of the Hugging Face Hub: pulled into a file once, and then read from that file."""
