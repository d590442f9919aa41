"""What runs beside generated code, inside of the sandbox."""
