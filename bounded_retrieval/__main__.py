"""``python -m bounded_retrieval`` is the command line."""

import sys

from bounded_retrieval.cli import main

sys.exit(main())
