"""What models of `tempting.py` import from another file: a setting, and an object that counts."""

SCALE = 2.0


class Statistics:
    def __init__(self) -> None:
        self.calls = 0


STATISTICS = Statistics()
