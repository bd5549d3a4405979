-- API keys. Times here are in milliseconds since 1970, 0 for never.
CREATE TABLE api_keys (
	id        TEXT    PRIMARY KEY,
	name      TEXT    NOT NULL,
	account   TEXT    NOT NULL,
	role      TEXT    NOT NULL,
	projects  TEXT    NOT NULL, -- JSON
	hash      TEXT    NOT NULL, -- of the secret, in hex
	old_hash  TEXT    NOT NULL, -- of the one before, '' for none
	old_until INTEGER NOT NULL,
	created   INTEGER NOT NULL,
	rotated   INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	revoked   INTEGER NOT NULL,
	used      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX api_key_names ON api_keys (name) WHERE revoked = 0;
