"""Flower (https://flower.ai) as the wire: two couriers inside Flower's processes, and the processes themselves.

coordinator -- socket -- ServerApp courier -- SuperLink == SuperNode -- ClientApp courier -- socket -- worker

Neither courier knows torch, a problem or an algorithm: they carry bytes. Nothing is imported here, because Flower
imports this package in every process that it starts, one for every message.
"""
