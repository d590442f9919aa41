"""Fixes of all models of a run that have graph breaks: searched once a place, stored, shown."""
