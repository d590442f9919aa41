"""`python -m compilewatch` is the program `compilewatch`."""

from compilewatch.cli import main

if __name__ == "__main__":
    main()
