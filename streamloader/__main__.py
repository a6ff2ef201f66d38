"""``python -m streamloader`` is the command line."""

from streamloader.cli import main

main()
