"""Experiments over test collections: loading them, running policies on them, and what came of each run."""
