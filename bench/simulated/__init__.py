"""Simulated runs beside live ones: is what `kvalet simulate` says what a server does?"""
