CREATE TABLE sessions (
	project TEXT    NOT NULL,
	key     TEXT    NOT NULL,
	spec    TEXT    NOT NULL, -- JSON
	sandbox TEXT    NOT NULL,
	state   TEXT    NOT NULL,
	holder  TEXT    NOT NULL,
	problem TEXT    NOT NULL,
	created INTEGER NOT NULL,
	opened  INTEGER NOT NULL,
	used    INTEGER NOT NULL,
	rev     INTEGER NOT NULL,
	PRIMARY KEY (project, key)
) STRICT, WITHOUT ROWID;
