"""What can go wrong between us and a provider, told apart by what it proves about the money.

Everything a provider module raises is a `ProviderError`; its `fate` says what is known of the request:

- `NOT_SENT`: no byte of it left (DNS, refused, TLS, connect timeout, pool timeout). Sending again is safe.
- `REJECTED`: the provider answered, in its own words, that it did not take it. Sending again is safe.
- `AMBIGUOUS`: the request left and no answer settles what became of it. Sending again may bill twice.
"""

from enum import StrEnum


class Fate(StrEnum):
    NOT_SENT = "not_sent"
    REJECTED = "rejected"
    AMBIGUOUS = "ambiguous"


class Remedy(StrEnum):
    """Who can make the next try succeed."""

    RETRY = "retry"  # time: the same request may pass later
    THROTTLED = "throttled"  # time, and the provider said so (429, 529): costs no attempt
    CUSTOMER = "customer"  # whoever wrote the request
    OPERATOR = "operator"  # whoever owns the provider account (key, credit, suspension)
    NOBODY = "nobody"  # final


class ProviderError(Exception):
    """A request to a provider did not give an answer that can be used.

    `code` is one of our own lower_snake words (docs/failure-codes.md), never the provider's text.
    `message` is for people, already short and free of credentials and query strings.
    `retry_after` is in seconds, as the provider asked for it, or None.
    `status` is the HTTP status, or None when there was no response.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        fate: Fate,
        remedy: Remedy,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.fate = fate
        self.remedy = remedy
        self.status = status
        self.retry_after = retry_after


class DownloadError(Exception):
    """Result media could not be fetched whole and safely.

    `retryable` is true when a fresh URL or a later try may succeed; false for policy refusals (address,
    size, type). `gone` is true when the provider answered 403, 404 or 410: the URL's life is over.
    """

    def __init__(self, code: str, message: str, *, retryable: bool, gone: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = retryable
        self.gone = gone
