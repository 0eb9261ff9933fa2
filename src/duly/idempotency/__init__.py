"""Once per key: canonical keys, and functions whose effect happens once however often they are called."""
