-- Each transaction that writes leaves a word here: by it is known that it was made, when
-- the answer to its COMMIT was lost. Its id says nothing after a crash of the server, which
-- gives ids that it has lost away again.
CREATE TABLE commits (
	word  TEXT        COLLATE "C" PRIMARY KEY,
	since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX commits_since ON commits (since);
