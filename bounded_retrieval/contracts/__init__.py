"""Contracts: what goes in, what comes out, what it may cost, and what the controller asks of others."""
