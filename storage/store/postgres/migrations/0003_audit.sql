-- The audit log. Times here are in milliseconds since 1970.
CREATE TABLE audit (
	id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	time    BIGINT NOT NULL,
	account TEXT   COLLATE "C" NOT NULL,
	project TEXT   COLLATE "C" NOT NULL, -- '' for none
	sandbox TEXT   COLLATE "C" NOT NULL, -- '' for none
	event   BYTEA  NOT NULL  -- JSON
);

CREATE INDEX audit_times ON audit (time);
CREATE INDEX audit_projects ON audit (project, id);
CREATE INDEX audit_sandboxes ON audit (sandbox, id);
