-- +goose Up
-- Files live in AgentFS; here is only what names them. No column holds their bytes.
ALTER TABLE ingress.block
    -- The file the block names, or that its inline data is in, as it was at acceptance.
    ADD COLUMN uri         text,
    ADD COLUMN name        text,
    ADD COLUMN mime_type   text,
    ADD COLUMN file_size   bigint,
    ADD COLUMN file_sha256 bytea CHECK (length(file_sha256) = 32),
    -- Where the inline data is that raw lacks, and how it goes back.
    ADD COLUMN data_uri     text,
    ADD COLUMN data_offset  bigint,
    ADD COLUMN data_escaped boolean,
    ADD CHECK ((uri IS NULL) = (name IS NULL) AND (uri IS NULL) = (mime_type IS NULL) AND (uri IS NULL) = (file_size IS NULL)),
    ADD CHECK ((data_uri IS NULL) = (data_offset IS NULL) AND (data_uri IS NULL) = (data_escaped IS NULL)),
    ADD CHECK (data_uri IS NULL OR uri IS NOT NULL);
CREATE INDEX block_file ON ingress.block (organization_id, conversation_id, turn_id) WHERE uri IS NOT NULL;

-- What happened to a file belongs to no turn.
ALTER TABLE ingress.event
    ALTER COLUMN turn_id DROP NOT NULL,
    ADD COLUMN file_uri          text,
    ADD COLUMN file_change       text CHECK (file_change IN ('written', 'removed', 'renamed')),
    ADD COLUMN file_previous_uri text,
    ADD COLUMN file_version      text,
    ADD CHECK ((turn_id IS NULL) = (type = 'file.changed')),
    ADD CHECK ((file_uri IS NOT NULL AND file_change IS NOT NULL AND file_previous_uri IS NOT NULL AND file_version IS NOT NULL) = (type = 'file.changed'));

-- How far the ledger of an AgentFS database was appended to a conversation's events.
CREATE TABLE ingress.file_position (
    organization_id text   NOT NULL,
    conversation_id text   NOT NULL,
    generation      text   NOT NULL,
    position        bigint NOT NULL,
    PRIMARY KEY (organization_id, conversation_id, generation),
    FOREIGN KEY (organization_id, conversation_id) REFERENCES ingress.conversation
);
