-- Each file runs in the transaction that it shares with all that are applied with it.
-- Names are compared and sorted by their bytes ("C"). BYTEA is for texts that may have
-- every character. Times are in milliseconds since 1970, those of conversations in
-- microseconds.
CREATE TABLE identity (
	id   TEXT   NOT NULL,
	born BIGINT NOT NULL
);

INSERT INTO identity VALUES (replace(gen_random_uuid()::text, '-', ''), floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

CREATE TABLE holders (
	id    TEXT        COLLATE "C" PRIMARY KEY,
	until TIMESTAMPTZ NOT NULL -- when its program has to have said again that it runs
);

CREATE TABLE places (
	scope TEXT COLLATE "C" PRIMARY KEY,
	place TEXT COLLATE "C" NOT NULL -- what has the sandboxes of this scope
);

CREATE TABLE sandboxes (
	id       TEXT    COLLATE "C" PRIMARY KEY,
	scope    TEXT    COLLATE "C" NOT NULL,
	provider TEXT    COLLATE "C" NOT NULL,
	project  TEXT    COLLATE "C" NOT NULL,
	name     TEXT    COLLATE "C" NOT NULL, -- '' for none
	spec     TEXT    NOT NULL, -- JSON
	state    TEXT    COLLATE "C" NOT NULL,
	volumes  BOOLEAN NOT NULL,
	holder   TEXT    COLLATE "C" NOT NULL,
	reason   BYTEA   NOT NULL,
	created  BIGINT  NOT NULL,
	rev      BIGINT  NOT NULL
);

CREATE UNIQUE INDEX sandbox_names ON sandboxes (scope, project, name) WHERE name <> '';

CREATE INDEX sandbox_project_names ON sandboxes (project, name) WHERE name <> '';

-- Sandboxes that their providers had no longer.
CREATE TABLE gone (
	id    TEXT   COLLATE "C" PRIMARY KEY,
	since BIGINT NOT NULL
);

CREATE TABLE secrets (
	id    TEXT COLLATE "C" PRIMARY KEY,
	scope TEXT COLLATE "C" NOT NULL,
	raw   TEXT COLLATE "C" NOT NULL
);

CREATE TABLE sessions (
	project TEXT   COLLATE "C" NOT NULL,
	key     TEXT   COLLATE "C" NOT NULL,
	spec    TEXT   NOT NULL, -- JSON
	sandbox TEXT   COLLATE "C" NOT NULL,
	state   TEXT   COLLATE "C" NOT NULL,
	holder  TEXT   COLLATE "C" NOT NULL,
	problem BYTEA  NOT NULL,
	created BIGINT NOT NULL,
	opened  BIGINT NOT NULL,
	used    BIGINT NOT NULL,
	rev     BIGINT NOT NULL,
	PRIMARY KEY (project, key)
);

-- Sandboxes that were made ahead of need.
CREATE TABLE warm (
	id      TEXT   COLLATE "C" PRIMARY KEY,
	scope   TEXT   COLLATE "C" NOT NULL, -- the provider that made it
	pool    TEXT   COLLATE "C" NOT NULL,
	project TEXT   COLLATE "C" NOT NULL,
	holder  TEXT   COLLATE "C" NOT NULL, -- the program whose stock it is; '' once it is claimed
	made    BIGINT NOT NULL,
	name    TEXT   COLLATE "C" NOT NULL, -- from here on: what whoever claimed it gave it
	labels  TEXT   NOT NULL, -- JSON
	ttl     BIGINT NOT NULL, -- in nanoseconds
	claimed BIGINT           -- NULL as long as it is stock
);

CREATE UNIQUE INDEX warm_names ON warm (project, name) WHERE name <> '';

CREATE INDEX warm_scopes ON warm (scope);

CREATE TABLE conversations (
	account      TEXT   COLLATE "C" NOT NULL,
	id           TEXT   COLLATE "C" NOT NULL,
	organization BYTEA  NOT NULL,
	agent        BYTEA  NOT NULL,
	template     BYTEA  NOT NULL,
	sandbox      BYTEA  NOT NULL,
	messages     BIGINT NOT NULL, -- how many were exchanged
	input        BIGINT NOT NULL, -- tokens
	output       BIGINT NOT NULL,
	cache        BIGINT NOT NULL,
	turn         TEXT,            -- JSON; NULL when none runs
	until        BIGINT NOT NULL,
	turns        BIGINT NOT NULL,
	created      BIGINT NOT NULL,
	updated      BIGINT NOT NULL,
	saved        BIGINT NOT NULL, -- the time of the newest message
	counted      BIGINT NOT NULL DEFAULT 0, -- the number of the last turn whose tokens are
	rev          BIGINT NOT NULL,
	PRIMARY KEY (account, id)
);

CREATE INDEX running_turns ON conversations (account, id) WHERE turn IS NOT NULL;

CREATE TABLE messages (
	account      TEXT   COLLATE "C" NOT NULL,
	conversation TEXT   COLLATE "C" NOT NULL,
	key          TEXT   COLLATE "C" NOT NULL,
	time         BIGINT NOT NULL,
	turn         BYTEA  NOT NULL,
	role         TEXT   COLLATE "C" NOT NULL,
	body         BYTEA  NOT NULL,
	input        BIGINT NOT NULL, -- tokens
	output       BIGINT NOT NULL,
	cache        BIGINT NOT NULL,
	tool_calls   TEXT   NOT NULL, -- JSON; '' for none
	PRIMARY KEY (account, conversation, key)
);

CREATE UNIQUE INDEX message_times ON messages (account, conversation, time);

CREATE TABLE agent_sandboxes (
	account      TEXT   COLLATE "C" NOT NULL,
	id           TEXT   COLLATE "C" NOT NULL,
	organization BYTEA  NOT NULL,
	agent        BYTEA  NOT NULL,
	template     BYTEA  NOT NULL,
	external     BYTEA  NOT NULL,
	conversation BYTEA  NOT NULL,
	meta         TEXT   NOT NULL, -- JSON
	created      BIGINT NOT NULL,
	deleted      BIGINT,          -- NULL when it is not
	rev          BIGINT NOT NULL,
	PRIMARY KEY (account, id)
);

CREATE INDEX agent_sandboxes_kept ON agent_sandboxes (account, id) WHERE deleted IS NULL;
