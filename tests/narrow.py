"""What a test knows and a type cannot say."""

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    """The value, which is not None here."""
    assert value is not None
    return value
