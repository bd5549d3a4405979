-- Sandboxes that were made ahead of need. Times here are in milliseconds since 1970.
CREATE TABLE warm (
	id      TEXT    PRIMARY KEY,
	scope   TEXT    NOT NULL, -- the provider that made it
	pool    TEXT    NOT NULL,
	project TEXT    NOT NULL,
	holder  TEXT    NOT NULL, -- the program whose stock it is; '' once it is claimed
	made    INTEGER NOT NULL,
	name    TEXT    NOT NULL, -- from here on: what whoever claimed it gave it
	labels  TEXT    NOT NULL, -- JSON
	ttl     INTEGER NOT NULL, -- in nanoseconds
	claimed INTEGER           -- NULL as long as it is stock
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX warm_names ON warm (project, name) WHERE name <> '';

CREATE INDEX warm_scopes ON warm (scope);
