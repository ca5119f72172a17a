-- Who may speak to the web API. Only a token's hash is kept: who reads this table can impersonate nobody. A token has 256
-- random bits, so a fast hash hides it as well as a slow one.
create table callkeeper.api_tokens (
  id bigint generated always as identity,
  token_hash bytea not null,
  scope text not null,
  user_id text,
  account_id text,
  label text default '' not null,
  created_at timestamptz default clock_timestamp() not null,
  expires_at timestamptz,
  revoked_at timestamptz,
  primary key (id),
  constraint api_tokens_scope_known check (scope in ('user', 'operator')),
  constraint api_tokens_user_is_named check ((scope = 'user') = (user_id is not null)),
  constraint api_tokens_only_users_pay check (account_id is null or scope = 'user'),
  constraint api_tokens_hash_is_whole check (octet_length(token_hash) = 32),
  constraint api_tokens_words_are_short check (
    octet_length(user_id) between 1 and 256 and octet_length(account_id) between 1 and 256 and octet_length(label) <= 256
  )
);
create unique index api_tokens_by_hash on callkeeper.api_tokens (token_hash);
