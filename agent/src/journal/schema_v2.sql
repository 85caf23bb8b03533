-- Schema 2: what a later agent needs to take over. Of each key only the newest is kept, as JSON; it is replaced in the
-- same transaction as the entries of the step that changed it.
CREATE TABLE kept (
    key  TEXT PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;

-- What has begun and not ended is looked for at each start.
CREATE INDEX entries_accepted ON entries (operation) WHERE kind = 'operation_accepted';
CREATE INDEX entries_ended ON entries (operation) WHERE kind = 'operation_ended';
