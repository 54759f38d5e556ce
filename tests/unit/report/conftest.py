"""Planted campaigns: in a store, or read back from one."""

from dscampaign.tests.support.planted import planted, planted_url

__all__ = ["planted", "planted_url"]
