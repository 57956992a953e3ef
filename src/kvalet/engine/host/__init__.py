"""The host side of the engine: what copies of pages leave the device for, and the thread that
copies. Bytes by address only: it knows no device, no graph, and not who holds what."""
