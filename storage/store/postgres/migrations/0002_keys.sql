-- API keys. Times here are in milliseconds since 1970, 0 for never.
CREATE TABLE api_keys (
	id        TEXT   COLLATE "C" PRIMARY KEY,
	name      TEXT   COLLATE "C" NOT NULL,
	account   TEXT   COLLATE "C" NOT NULL,
	role      TEXT   COLLATE "C" NOT NULL,
	projects  TEXT   COLLATE "C" NOT NULL, -- JSON
	hash      TEXT   COLLATE "C" NOT NULL, -- of the secret, in hex
	old_hash  TEXT   COLLATE "C" NOT NULL, -- of the one before, '' for none
	old_until BIGINT NOT NULL,
	created   BIGINT NOT NULL,
	rotated   BIGINT NOT NULL,
	expires   BIGINT NOT NULL,
	revoked   BIGINT NOT NULL,
	used      BIGINT NOT NULL
);

CREATE UNIQUE INDEX api_key_names ON api_keys (name) WHERE revoked = 0;
