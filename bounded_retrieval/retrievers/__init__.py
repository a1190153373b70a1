"""Searchers and unit sources, one backend a file; each is imported only when it is used."""
