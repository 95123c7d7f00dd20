"""Certificates and node keys."""
