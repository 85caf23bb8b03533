-- A journal of schema 1, as text: one entry of every kind that existed then, and one of a kind that never did.
-- It must load for ever; see the test `a_journal_of_the_first_schema_still_loads` of the agent's journal.
PRAGMA application_id = 1212312174;
PRAGMA user_version = 1;


CREATE TABLE boots (
    boot    INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL UNIQUE
);

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

CREATE TABLE engines (
    engine      TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL
) WITHOUT ROWID;

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

CREATE VIEW log AS
    SELECT seq, strftime('%Y-%m-%dT%H:%M:%fZ', wall, 'unixepoch') AS time, boot_id, run, operation, kind, engine, body
    FROM entries JOIN boots USING (boot);
CREATE VIEW incidents AS
    SELECT seq, strftime('%Y-%m-%dT%H:%M:%fZ', wall, 'unixepoch') AS time, operation, engine,
           body ->> 'code' AS code, body ->> 'message' AS message
    FROM entries WHERE kind = 'incident';

INSERT INTO boots (boot, boot_id) VALUES (1, '6f1b4a52-0d1e-4d53-9a56-6f0f3b1f2c11');

INSERT INTO entries VALUES (1, 1000000000, 1790000001.0, 1, 'cycle-1', 9, 'agent_started', NULL,
    '{"kind":"agent_started","version":"0.1.0","pid":7,"boot_id":"b-1"}');
INSERT INTO entries VALUES (2, 2000000000, 1790000002.0, 1, 'cycle-1', 9, 'configured', 'A',
    '{"kind":"configured","engine":"A","fingerprint":"f1"}');
INSERT INTO entries VALUES (3, 3000000000, 1790000003.0, 1, 'cycle-1', 9, 'spawned', 'A',
    '{"kind":"spawned","engine":"A","incarnation":{"pid":100,"start_ticks":5000,"boot_id":"b-1"}}');
INSERT INTO entries VALUES (4, 4000000000, 1790000004.0, 1, 'cycle-1', 9, 'ready', 'A',
    '{"kind":"ready","engine":"A","version":"0.31.0","context_tokens":8192}');
INSERT INTO entries VALUES (5, 5000000000, 1790000005.0, 1, 'cycle-1', 9, 'transition', 'A',
    '{"kind":"transition","engine":"A","from":"starting","to":"awake","generation":3,"reason":"ready"}');
INSERT INTO entries VALUES (6, 6000000000, 1790000006.0, 1, 'cycle-1', 9, 'footprint', 'A',
    '{"kind":"footprint","engine":"A","tier":"level1","device_bytes":626003968,"host_bytes":54760833024,"pss_bytes":null}');
INSERT INTO entries VALUES (7, 7000000000, 1790000007.0, 1, 'cycle-1', 9, 'operation_accepted', 'B',
    '{"kind":"operation_accepted","operation":"handoff","engine":"B","from":"A","strategy":"auto","order":"make-before-break","leave":"parked","drain":"wait","by":"operator","plan":["wake the KV cache of B","park A"]}');
INSERT INTO entries VALUES (8, 8000000000, 1790000008.0, 1, 'cycle-1', 9, 'step_began', 'B',
    '{"kind":"step_began","index":0,"phase":"wake_kv","engine":"B"}');
INSERT INTO entries VALUES (9, 9000000000, 1790000009.0, 1, 'cycle-1', 9, 'step_ended', 'B',
    '{"kind":"step_ended","index":0,"phase":"wake_kv","engine":"B","began":1000000000,"ended":1080000000,"outcome":{"result":"ok"},"before":{"device":34359738368,"engine":null,"rss":1073741824},"after":{"device":34359738368,"engine":null,"rss":1073741824}}');
INSERT INTO entries VALUES (10, 10000000000, 1790000010.0, 1, 'cycle-1', 9, 'probe', 'B',
    '{"kind":"probe","engine":"B","purpose":"probe","began":1080000000,"first_token":1095000000,"outcome":{"result":"ok"}}');
INSERT INTO entries VALUES (11, 11000000000, 1790000011.0, 1, 'cycle-1', 9, 'engine_work', NULL,
    '{"kind":"engine_work","work":[{"engine":"B","work":"wake","began":1001000000,"ended":1079000000}]}');
INSERT INTO entries VALUES (12, 12000000000, 1790000012.0, 1, 'cycle-1', 9, 'operation_ended', NULL,
    '{"kind":"operation_ended","outcome":{"result":"ok"},"accepted":999000000,"first_token":1095000000,"ended":1200000000}');
INSERT INTO entries VALUES (13, 13000000000, 1790000013.0, 1, 'cycle-1', 9, 'incident', 'A',
    '{"kind":"incident","code":"crashed","engine":"A","device":null,"message":"engine A crashed"}');
INSERT INTO entries VALUES (14, 14000000000, 1790000014.0, 1, 'cycle-1', 9, 'run_started', NULL,
    '{"kind":"run_started","plan":"reference","steps":[{"step":"start","engine":"A","initial":true},{"step":"load","engine":"A","stage":"baseline","concurrency":2,"rounds":3,"requests":4,"output_tokens":64},{"step":"sleep_cycle","engine":"A","tier":"level2"},{"step":"sleep","engine":"A","tier":"level1"},{"step":"activate","engine":"A","auto":true},{"step":"handoff","from":"A","to":"B","auto":false}],"engines":[{"engine":"A","model":"m"}],"runtime":"vLLM 0.31.0","gpu":"1 × NVIDIA L20","kv_gib":4.0,"simulated":{"profile":"l20","speed":20.0,"host_scale":256.0}}');
INSERT INTO entries VALUES (15, 15000000000, 1790000015.0, 1, 'cycle-1', 9, 'cycle_step_began', NULL,
    '{"kind":"cycle_step_began","index":0}');
INSERT INTO entries VALUES (16, 16000000000, 1790000016.0, 1, 'cycle-1', 9, 'cycle_step_ended', NULL,
    '{"kind":"cycle_step_ended","index":0,"operations":[4,5],"outcome":{"result":"failed","code":"start_failed","message":"exit 1"}}');
INSERT INTO entries VALUES (17, 17000000000, 1790000017.0, 1, 'cycle-1', 9, 'load_request', NULL,
    '{"kind":"load_request","index":1,"round":0,"ok":false,"error":"connection reset","began":2000000000,"first_token":null,"ended":2100000000,"output_tokens":null,"prompt_tokens":null}');
INSERT INTO entries VALUES (18, 18000000000, 1790000018.0, 1, 'cycle-1', 9, 'load_round', NULL,
    '{"kind":"load_round","index":1,"round":0,"began":2000000000,"ended":2100000000}');
INSERT INTO entries VALUES (19, 19000000000, 1790000019.0, 1, 'cycle-1', 9, 'window', NULL,
    '{"kind":"window","name":"A-baseline","start":1790000000.5,"end":1790000010.0}');
INSERT INTO entries VALUES (20, 20000000000, 1790000020.0, 1, 'cycle-1', 9, 'run_ended', NULL,
    '{"kind":"run_ended","outcome":{"result":"cancelled"}}');
INSERT INTO entries VALUES (21, 21000000000, 1790000021.0, 1, 'cycle-1', 9, 'agent_stopped', NULL,
    '{"kind":"agent_stopped","reason":"SIGTERM"}');
INSERT INTO entries VALUES (22, 22000000000, 1790000022.0, 1, 'cycle-1', 9, 'teleported', 'A',
    '{"kind":"teleported","engine":"A"}');

INSERT INTO runs VALUES ('cycle-1', 'reference', 14, 20, 1790000014.0, 1790000020.0, 'cancelled');
INSERT INTO engines VALUES ('A', 'f1');
INSERT INTO footprints VALUES ('A', 'f1', 'level1', 626003968, 54760833024, NULL, 1790000006.0, 6);
INSERT INTO samples VALUES (1000000000, 1790000001.0, 1, 'gpu0', 34359738368, '[["A",33733734400],["B",null]]');
INSERT INTO host_samples VALUES (1000000000, 1790000001.0, 1, 'A', 54760833024, NULL);
INSERT INTO meta VALUES ('checkpointed', 1790000020.0);
