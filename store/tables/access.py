"""Who may speak to the web API."""

import sqlalchemy as sa

from store.tables.base import TIMESTAMP, check, metadata, now

api_tokens = sa.Table(
    "api_tokens",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("token_hash", sa.LargeBinary, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text),
    sa.Column("account_id", sa.Text),
    sa.Column("label", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("expires_at", TIMESTAMP),
    sa.Column("revoked_at", TIMESTAMP),
    check("api_tokens_scope_known", "scope in ('user', 'operator')"),
    check("api_tokens_user_is_named", "(scope = 'user') = (user_id is not null)"),
    check("api_tokens_only_users_pay", "account_id is null or scope = 'user'"),
    check("api_tokens_hash_is_whole", "octet_length(token_hash) = 32"),
    check(
        "api_tokens_words_are_short",
        "octet_length(user_id) between 1 and 256 and octet_length(account_id) between 1 and 256"
        " and octet_length(label) <= 256",
    ),
)
sa.Index("api_tokens_by_hash", api_tokens.c.token_hash, unique=True)
