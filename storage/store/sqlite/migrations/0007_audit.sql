-- The audit log. Times here are in milliseconds since 1970.
CREATE TABLE audit (
	id      INTEGER PRIMARY KEY AUTOINCREMENT,
	time    INTEGER NOT NULL,
	account TEXT    NOT NULL,
	project TEXT    NOT NULL, -- '' for none
	sandbox TEXT    NOT NULL, -- '' for none
	event   TEXT    NOT NULL  -- JSON
) STRICT;

CREATE INDEX audit_times ON audit (time);
CREATE INDEX audit_projects ON audit (project, id);
CREATE INDEX audit_sandboxes ON audit (sandbox, id);
