"""Nodes: one file and one function of the same name for each node of the graph."""
