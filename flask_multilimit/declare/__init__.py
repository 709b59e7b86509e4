"""Declarations, made when Python imports a module: limiters, their types and rules."""
