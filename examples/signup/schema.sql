-- The app's own tables. Run at every start, under a lock, since several processes may start at once.
SELECT pg_advisory_xact_lock(hashtext('examples/signup'));

CREATE TABLE IF NOT EXISTS usr (
  usr_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  email         text        NOT NULL,
  password_hash text        NOT NULL,
  created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX IF NOT EXISTS usr_email ON usr (lower(email));

CREATE TABLE IF NOT EXISTS session (
  token_hash bytea       PRIMARY KEY, -- of a random token that only the cookie has
  usr_id     bigint      NOT NULL REFERENCES usr ON DELETE CASCADE,
  expires_at timestamptz NOT NULL
);

-- There is no UNIQUE (usr_id, reason) here, on purpose: were a credit granted twice, it would show.
CREATE TABLE IF NOT EXISTS ledger (
  ledger_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  usr_id     bigint      NOT NULL REFERENCES usr ON DELETE CASCADE,
  cents      integer     NOT NULL,
  reason     text        NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS ledger_usr ON ledger (usr_id);
