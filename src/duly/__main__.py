"""``python -m duly`` is ``duly``."""

from duly.cli.main import main

if __name__ == "__main__":
    main()
