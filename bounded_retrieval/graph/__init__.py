"""Graphs: state, runtime context, routing and builders."""
