"""`python -m sandboxd.cli`."""

from sandboxd.cli import main

if __name__ == "__main__":
    main()
