-- +goose Up
CREATE TABLE routing.organization (
    organization_id text        PRIMARY KEY,
    create_time     timestamptz NOT NULL DEFAULT statement_timestamp(),
    -- When both authorities were provisioned; NULL while that is open.
    provision_time  timestamptz
);

CREATE TABLE routing.placement (
    organization_id text   PRIMARY KEY REFERENCES routing.organization,
    cell_id         text   NOT NULL,
    epoch           bigint NOT NULL CHECK (epoch >= 1)
);

CREATE TABLE routing.conversation (
    organization_id   text        NOT NULL REFERENCES routing.organization,
    conversation_id   text        NOT NULL,
    specialist_id     text        NOT NULL,
    -- Keyed digest of specialist, persona and environment; their text is nowhere in this database.
    request_digest    bytea       NOT NULL,
    -- SessionDB's largest session row id, committed before session/new.
    session_watermark bigint      NOT NULL CHECK (session_watermark >= 0),
    session_id        text        CHECK (session_id <> ''),
    create_time       timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (organization_id, conversation_id),
    UNIQUE (organization_id, session_id)
);

CREATE INDEX conversation_bound ON routing.conversation (organization_id, create_time, conversation_id)
    WHERE session_id IS NOT NULL;
CREATE INDEX conversation_pending ON routing.conversation (organization_id, create_time, conversation_id)
    WHERE session_id IS NULL;
