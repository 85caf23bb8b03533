-- Schema 1 of Hotbunk's journal. `at_ns` is CLOCK_MONOTONIC in nanoseconds and has a meaning only within one boot;
-- `wall` is seconds since the Unix epoch. NULL means unknown, never 0.

CREATE TABLE boots (
    boot    INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL UNIQUE
);

-- Facts, in the order of their commits. `body` is JSON and holds everything; the columns are what one searches by.
CREATE TABLE entries (
    seq       INTEGER PRIMARY KEY,
    at_ns     INTEGER NOT NULL,
    wall      REAL NOT NULL,
    boot      INTEGER NOT NULL REFERENCES boots (boot),
    run       TEXT,
    operation INTEGER,
    kind      TEXT NOT NULL,
    engine    TEXT,
    body      TEXT NOT NULL
);
CREATE INDEX entries_run ON entries (run) WHERE run IS NOT NULL;
CREATE INDEX entries_operation ON entries (operation) WHERE operation IS NOT NULL;

CREATE TABLE runs (
    run        TEXT PRIMARY KEY,
    plan       TEXT NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    started    REAL NOT NULL,
    ended      REAL,
    outcome    TEXT
) WITHOUT ROWID;

-- The fingerprint of the settings that each engine was last started with.
CREATE TABLE engines (
    engine      TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL
) WITHOUT ROWID;

-- The latest footprint of each engine, settings and tier. They outlive the entries they come from.
CREATE TABLE footprints (
    engine       TEXT NOT NULL,
    fingerprint  TEXT NOT NULL,
    tier         TEXT NOT NULL,
    device_bytes INTEGER,
    host_bytes   INTEGER,
    pss_bytes    INTEGER,
    wall         REAL NOT NULL,
    seq          INTEGER NOT NULL,
    PRIMARY KEY (engine, fingerprint, tier)
) WITHOUT ROWID;

-- Device memory; `used` NULL is a missed sample. `engines` is JSON: [["A", 123], ["B", null]].
CREATE TABLE samples (
    at_ns   INTEGER NOT NULL,
    wall    REAL NOT NULL,
    boot    INTEGER NOT NULL REFERENCES boots (boot),
    device  TEXT NOT NULL,
    used    INTEGER,
    engines TEXT NOT NULL
);
CREATE INDEX samples_wall ON samples (wall);

CREATE TABLE host_samples (
    at_ns  INTEGER NOT NULL,
    wall   REAL NOT NULL,
    boot   INTEGER NOT NULL REFERENCES boots (boot),
    engine TEXT NOT NULL,
    rss    INTEGER,
    pss    INTEGER
);
CREATE INDEX host_samples_wall ON host_samples (wall);

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;

-- For people.
CREATE VIEW log AS
    SELECT seq, strftime('%Y-%m-%dT%H:%M:%fZ', wall, 'unixepoch') AS time, boot_id, run, operation, kind, engine, body
    FROM entries JOIN boots USING (boot);
CREATE VIEW incidents AS
    SELECT seq, strftime('%Y-%m-%dT%H:%M:%fZ', wall, 'unixepoch') AS time, operation, engine,
           body ->> 'code' AS code, body ->> 'message' AS message
    FROM entries WHERE kind = 'incident';
