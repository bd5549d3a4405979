-- A name is looked for in all scopes.
CREATE INDEX sandbox_project_names ON sandboxes (project, name) WHERE name <> '';

ALTER TABLE sandboxes ADD COLUMN reason TEXT NOT NULL DEFAULT '';

-- Sandboxes that their providers had no longer.
CREATE TABLE gone (
	id    TEXT    NOT NULL PRIMARY KEY,
	since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
