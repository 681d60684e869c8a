package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/services/ingress/internal/inline"
	"humanwork.internal/services/ingress/internal/turn"
)

// fileOf are the columns of fileRow, of a block b.
const fileOf = `b.uri, b.name, b.mime_type, b.file_size, b.file_sha256, b.data_uri, b.data_offset, b.data_escaped`

// fileRow is what a block's row says of files; nil where it has none.
type fileRow struct {
	uri, name, mime *string
	size            *int64
	sha256          []byte
	dataURI         *string
	offset          *int64
	escaped         *bool
}

// after appends the row's destinations to those of other columns.
func (r *fileRow) after(columns ...any) []any {
	return append(columns, &r.uri, &r.name, &r.mime, &r.size, &r.sha256, &r.dataURI, &r.offset, &r.escaped)
}

// to completes the block; the table's checks make the columns come together.
func (r *fileRow) to(b *turn.Block) {
	if r.uri != nil {
		b.File = &turn.File{URI: *r.uri, Name: *r.name, MimeType: *r.mime, Size: *r.size, SHA256: r.sha256}
	}
	if r.dataURI != nil {
		b.Data = &turn.Data{URI: *r.dataURI, Cut: inline.Cut{Offset: *r.offset, Escaped: *r.escaped}}
	}
}

// fileColumns are the same for many blocks, as one statement takes them.
type fileColumns struct {
	uri, name, mime []*string
	size            []*int64
	sha256          [][]byte
	dataURI         []*string
	offset          []*int64
	escaped         []*bool
}

func (f *fileColumns) add(b turn.Block) {
	var r fileRow
	if b.File != nil {
		r.uri, r.name, r.mime, r.size, r.sha256 = &b.File.URI, &b.File.Name, &b.File.MimeType, &b.File.Size, b.File.SHA256
	}
	if b.Data != nil {
		r.dataURI, r.offset, r.escaped = &b.Data.URI, &b.Data.Cut.Offset, &b.Data.Cut.Escaped
	}
	f.uri, f.name, f.mime, f.size, f.sha256 = append(f.uri, r.uri), append(f.name, r.name), append(f.mime, r.mime), append(f.size, r.size), append(f.sha256, r.sha256)
	f.dataURI, f.offset, f.escaped = append(f.dataURI, r.dataURI), append(f.offset, r.offset), append(f.escaped, r.escaped)
}

// Attachments implements store.Reads.
func (s *Store) Attachments(ctx context.Context, c turn.Conversation, after turn.Place, below int64, limit int) ([]turn.Attachment, error) {
	rows, err := s.pool.Query(ctx, `SELECT t.watermark, t.position, b.message_index, b.block_index, t.create_time, `+fileOf+`
		FROM ingress.block b JOIN ingress.turn t USING (organization_id, conversation_id, turn_id)
		WHERE b.organization_id = $1 AND b.conversation_id = $2 AND b.uri IS NOT NULL AND t.watermark < $7
			AND (t.watermark, t.position, b.message_index, b.block_index) > ($3, $4, $5::integer, $6::integer)
		ORDER BY t.watermark, t.position, b.message_index, b.block_index LIMIT $8`,
		c.Organization, c.ID, after.Watermark, after.Position, after.Message, after.Block, below, limit)
	if err != nil {
		return nil, translate("list attachments", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a turn.Attachment, err error) {
		var file fileRow
		var b turn.Block
		if err := row.Scan(file.after(&a.Place.Watermark, &a.Place.Position, &a.Place.Message, &a.Place.Block, &a.Created)...); err != nil {
			return a, err
		}
		file.to(&b)
		a.File = *b.File
		return a, nil
	})
	return out, translate("list attachments", err)
}

// openSQL makes sure that the conversation has its row: files may change before its first turn.
const openSQL = `INSERT INTO ingress.conversation (organization_id, conversation_id, last_position, event_seq, waiting)
VALUES ($1, $2, 0, 0, 0) ON CONFLICT DO NOTHING`

// appendFilesSQL runs under the conversation's lock. Without a new change none of its parts has a
// row.
const appendFilesSQL = `
WITH u AS (
    SELECT *, row_number() OVER (ORDER BY n) AS i
    FROM unnest($4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY AS u (position, uri, change, previous, version, n)
    WHERE position > coalesce((SELECT position FROM ingress.file_position
        WHERE organization_id = $1 AND conversation_id = $2 AND generation = $3), 0)
), p AS (
    INSERT INTO ingress.file_position AS p (organization_id, conversation_id, generation, position)
    SELECT $1, $2, $3, max(position) FROM u HAVING count(*) > 0
    ON CONFLICT (organization_id, conversation_id, generation) DO UPDATE SET position = excluded.position
), c AS (
    UPDATE ingress.conversation SET event_seq = event_seq + (SELECT count(*) FROM u)
    WHERE organization_id = $1 AND conversation_id = $2 AND EXISTS (SELECT FROM u)
    RETURNING event_seq, event_seq - (SELECT count(*) FROM u) AS before, clock_timestamp() AS now
), e AS (
    INSERT INTO ingress.event (organization_id, conversation_id, seq, type, file_uri, file_change, file_previous_uri, file_version, create_time)
    SELECT $1, $2, c.before + u.i, 'file.changed', u.uri, u.change, u.previous, u.version, c.now FROM c, u
)
SELECT c.before, (SELECT count(*) FROM u), c.now, pg_notify('ingress', $9 || c.event_seq)::text FROM c`

// AppendFiles implements store.Turns: one round trip.
func (s *Store) AppendFiles(ctx context.Context, c turn.Conversation, generation string, changes []turn.FileChange) ([]turn.Event, error) {
	var positions []int64
	var uris, kinds, previous, versions []string
	for i, f := range changes {
		if i > 0 && f.Position < changes[i-1].Position {
			return nil, errors.New("append file changes: their positions fall")
		}
		positions, uris, kinds = append(positions, f.Position), append(uris, f.URI), append(kinds, f.Change)
		previous, versions = append(previous, f.Previous), append(versions, f.Version)
	}
	var events []turn.Event
	err := s.transaction(ctx, func(b *pgx.Batch) {
		b.Queue(openSQL, c.Organization, c.ID)
		b.Queue(lockSQL, c.Organization, c.ID)
		b.Queue(appendFilesSQL, c.Organization, c.ID, generation, positions, uris, kinds, previous, versions, noticeOf(c, "", false)).Query(func(rows pgx.Rows) error {
			var before int64
			var count int
			var e turn.Event
			var ignored string
			_, err := pgx.ForEachRow(rows, []any{&before, &count, &e.Created, &ignored}, func() error {
				// Positions do not fall: what is new is the end of the list.
				for i, f := range changes[len(changes)-count:] {
					f.Position = 0
					e.Type, e.Sequence, e.File = turn.EventFile, before+int64(i)+1, &f
					events = append(events, e)
				}
				return nil
			})
			return err
		})
	})
	if err != nil {
		return nil, translate("append file changes", err)
	}
	return events, nil
}
