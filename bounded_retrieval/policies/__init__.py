"""Policies: pure functions of recorded facts, without I/O."""
