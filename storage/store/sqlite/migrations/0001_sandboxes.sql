CREATE TABLE identity (
	id   TEXT    NOT NULL,
	born INTEGER NOT NULL -- milliseconds since 1970, as all times
) STRICT;

INSERT INTO identity VALUES (lower(hex(randomblob(16))), CAST(1000 * unixepoch('subsec') AS INTEGER));

CREATE TABLE sandboxes (
	id       TEXT    NOT NULL PRIMARY KEY,
	scope    TEXT    NOT NULL,
	provider TEXT    NOT NULL,
	project  TEXT    NOT NULL,
	name     TEXT    NOT NULL, -- '' for none
	spec     TEXT    NOT NULL, -- JSON
	state    TEXT    NOT NULL,
	volumes  INTEGER NOT NULL,
	holder   TEXT    NOT NULL,
	created  INTEGER NOT NULL,
	rev      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX sandbox_names ON sandboxes (scope, project, name) WHERE name <> '';

CREATE TABLE secrets (
	id    TEXT NOT NULL PRIMARY KEY,
	scope TEXT NOT NULL,
	raw   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
