-- Times here are in microseconds since 1970.
CREATE TABLE conversations (
	account      TEXT    NOT NULL,
	id           TEXT    NOT NULL,
	organization TEXT    NOT NULL,
	agent        TEXT    NOT NULL,
	template     TEXT    NOT NULL,
	sandbox      TEXT    NOT NULL,
	messages     INTEGER NOT NULL, -- how many were exchanged
	input        INTEGER NOT NULL, -- tokens
	output       INTEGER NOT NULL,
	cache        INTEGER NOT NULL,
	turn         TEXT,             -- JSON; NULL when none runs
	until        INTEGER NOT NULL,
	turns        INTEGER NOT NULL,
	created      INTEGER NOT NULL,
	updated      INTEGER NOT NULL,
	saved        INTEGER NOT NULL, -- the time of the newest message
	counted      INTEGER NOT NULL DEFAULT 0, -- the number of the last turn whose tokens are
	rev          INTEGER NOT NULL,
	PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX running_turns ON conversations (account, id) WHERE turn IS NOT NULL;

CREATE TABLE messages (
	account      TEXT    NOT NULL,
	conversation TEXT    NOT NULL,
	key          TEXT    NOT NULL,
	time         INTEGER NOT NULL,
	turn         TEXT    NOT NULL,
	role         TEXT    NOT NULL,
	body         TEXT    NOT NULL,
	input        INTEGER NOT NULL, -- tokens
	output       INTEGER NOT NULL,
	cache        INTEGER NOT NULL,
	tool_calls   TEXT    NOT NULL, -- JSON; '' for none
	PRIMARY KEY (account, conversation, key)
) STRICT;

CREATE UNIQUE INDEX message_times ON messages (account, conversation, time);

CREATE TABLE agent_sandboxes (
	account      TEXT    NOT NULL,
	id           TEXT    NOT NULL,
	organization TEXT    NOT NULL,
	agent        TEXT    NOT NULL,
	template     TEXT    NOT NULL,
	external     TEXT    NOT NULL,
	conversation TEXT    NOT NULL,
	meta         TEXT    NOT NULL, -- JSON
	created      INTEGER NOT NULL,
	deleted      INTEGER,          -- NULL when it is not
	rev          INTEGER NOT NULL,
	PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX agent_sandboxes_kept ON agent_sandboxes (account, id) WHERE deleted IS NULL;
