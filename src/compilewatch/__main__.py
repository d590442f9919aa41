"""`python -m compilewatch`."""

from compilewatch.cli import main

if __name__ == "__main__":
    main()
