"""`python -m raybias` is the command `raybias`."""

from raybias.cli import main

if __name__ == "__main__":
    main()
