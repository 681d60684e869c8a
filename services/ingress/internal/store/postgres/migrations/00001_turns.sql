-- +goose Up
CREATE TABLE ingress.instance (
    instance_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    start_time  timestamptz NOT NULL DEFAULT now()
);

-- One row a conversation that ever had a turn. Its lock orders everything that happens to the
-- conversation's turns; waiting and running repeat what the turns say, so that acceptance needs
-- one statement and no count.
CREATE TABLE ingress.conversation (
    organization_id text    NOT NULL,
    conversation_id text    NOT NULL,
    last_position   bigint  NOT NULL,
    event_seq       bigint  NOT NULL,
    waiting         integer NOT NULL CHECK (waiting >= 0),
    running         boolean NOT NULL DEFAULT false,
    PRIMARY KEY (organization_id, conversation_id)
);
CREATE INDEX conversation_claimable ON ingress.conversation (organization_id, conversation_id)
    WHERE waiting > 0 AND NOT running;

CREATE TABLE ingress.turn (
    organization_id  text    NOT NULL,
    conversation_id  text    NOT NULL,
    turn_id          text    NOT NULL,
    position         bigint  NOT NULL,
    state            text    NOT NULL CHECK (state IN ('ACCEPTED', 'RUNNING', 'REPLIED', 'NATIVE_COMMAND', 'NO_REPLY', 'FAILED', 'CANCELLED')),
    cancel_requested boolean NOT NULL DEFAULT false,
    -- Set by the claim, before the prompt.
    session_id       text,
    attempt          integer NOT NULL DEFAULT 0,
    epoch            bigint,
    watermark        bigint,
    -- The key share lock this takes makes a claim and the takeover of its owner exclude each other.
    owner            integer REFERENCES ingress.instance,
    -- Set by the end.
    user_message_ids bigint[],
    end_watermark    bigint,
    error_reason     text,
    error_message    text,
    error_retryable  boolean,
    accept_to_attach_ms    double precision,
    cold_admission_ms      double precision,
    first_model_request_ms double precision,
    model_tool_loop_ms     double precision,
    persist_deliver_ms     double precision,
    create_time      timestamptz NOT NULL,
    start_time       timestamptz,
    end_time         timestamptz,
    PRIMARY KEY (organization_id, conversation_id, turn_id),
    UNIQUE (organization_id, conversation_id, position),
    FOREIGN KEY (organization_id, conversation_id) REFERENCES ingress.conversation,
    CHECK ((state = 'RUNNING') = (owner IS NOT NULL))
);
CREATE UNIQUE INDEX turn_running ON ingress.turn (organization_id, conversation_id) WHERE state = 'RUNNING';
CREATE INDEX turn_owner ON ingress.turn (owner) WHERE state = 'RUNNING';
CREATE INDEX turn_waiting ON ingress.turn (organization_id, conversation_id, position) WHERE state = 'ACCEPTED';

CREATE TABLE ingress.block (
    organization_id text     NOT NULL,
    conversation_id text     NOT NULL,
    turn_id         text     NOT NULL,
    message_index   smallint NOT NULL,
    block_index     smallint NOT NULL,
    inbound_id      text     NOT NULL,
    type            text     NOT NULL,
    sha256          bytea    NOT NULL CHECK (length(sha256) = 32),
    size            bigint   NOT NULL,
    -- The exact bytes, until the turn ends (rule 9).
    raw             bytea,
    PRIMARY KEY (organization_id, conversation_id, turn_id, message_index, block_index),
    FOREIGN KEY (organization_id, conversation_id, turn_id) REFERENCES ingress.turn
);

-- Exactly once: a row of Hermes's is delivered under one turn or under none.
CREATE TABLE ingress.delivery (
    organization_id text   NOT NULL,
    session_id      text   NOT NULL,
    message_id      bigint NOT NULL,
    conversation_id text   NOT NULL,
    turn_id         text   NOT NULL,
    ordinal         integer NOT NULL,
    PRIMARY KEY (organization_id, session_id, message_id),
    UNIQUE (organization_id, conversation_id, turn_id, ordinal),
    FOREIGN KEY (organization_id, conversation_id, turn_id) REFERENCES ingress.turn
);

CREATE TABLE ingress.event (
    organization_id text   NOT NULL,
    conversation_id text   NOT NULL,
    seq             bigint NOT NULL,
    type            text   NOT NULL,
    turn_id         text   NOT NULL,
    message_id      bigint,
    create_time     timestamptz NOT NULL,
    PRIMARY KEY (organization_id, conversation_id, seq),
    FOREIGN KEY (organization_id, conversation_id, turn_id) REFERENCES ingress.turn
);

CREATE TABLE ingress.idempotency (
    organization_id text  NOT NULL,
    conversation_id text  NOT NULL,
    method          text  NOT NULL,
    key             text  NOT NULL,
    body_sha256     bytea NOT NULL CHECK (length(body_sha256) = 32),
    turn_id         text  NOT NULL,
    PRIMARY KEY (organization_id, conversation_id, method, key),
    FOREIGN KEY (organization_id, conversation_id, turn_id) REFERENCES ingress.turn
);
