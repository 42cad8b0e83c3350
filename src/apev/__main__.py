"""`python -m apev` is the `apev` command."""

from apev.cli import main

main()
