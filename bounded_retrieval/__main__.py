"""``python -m bounded_retrieval`` is the command line."""

import sys

from bounded_retrieval.cli import command

sys.exit(command())
