"""Models of the Hugging Face Hub: pulled once into a file, read from it afterwards."""
