package checks

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
)

// attached collects what E2 wrote and where it must be.
type attached struct {
	*boundary
	lane   *lane
	marker string
	// contents are the SHA-256 of all that must be below artifacts/inbound, each once.
	contents map[string]bool
}

// E2 follows an attachment from the upload to the child's standard input, and looks for its bytes everywhere else.
func E2(t harness.T) string {
	w := start(t, 4*time.Minute, harness.Options{Venv: harness.RecordingVenv(t)})
	a := &attached{boundary: &boundary{world: w}, marker: "planted-" + unique() + unique() + unique(), contents: map[string]bool{}}
	a.lane = a.boundary.lane("attached")
	events, err := w.Client.Events(w.ctx, a.lane.conv, 0)
	if err != nil {
		t.Fatalf("attach to the events: %v", err)
	}
	defer events.Close()
	upload := a.captioned()
	a.alone(upload)
	inline := a.inline()
	rows := a.held()
	if t.Failed() {
		return ""
	}
	a.compare()
	a.told(events)
	a.shown(upload)
	a.stored()
	copies := a.nowhereElse(upload)
	gone := a.gone()
	return fmt.Sprintf("attachment and caption: the block returned is the block at the child's stdin, one inode in the exported AgentFS; %d inline kinds written once "+
		"and rebuilt byte for byte; %d Postgres rows hold neither bytes nor base64; bytes on disk only in %s; alone NO_REPLY with a reason; held until dispatch (FILE_HELD); %s; "+
		"in the transcript; file.changed over SSE", inline, rows, copies, gone)
}

// document is content that only this run has: its marker can be found in the chunk of a database.
func (a *attached) document(size int) []byte {
	return bytes.Repeat([]byte(a.marker+" "+unique()+"\n"), size/64)
}

func (a *attached) upload(name string, content []byte) harness.Attachment {
	a.t.Helper()
	a.contents[digest(content)] = true
	got, err := a.Client.Attach(a.ctx, a.lane.conv, name, bytes.NewReader(content), int64(len(content)))
	if err != nil {
		a.t.Fatalf("upload %q: %v", name, err)
	}
	if got.SHA256 != digest(content) || got.Size != int64(len(content)) || !strings.HasPrefix(got.URI, "file:///artifacts/inbound/") {
		a.t.Errorf("upload %q = %s of %d bytes with digest %s, want %d bytes and %s below artifacts/inbound", name, got.URI, got.Size, got.SHA256, len(content), digest(content))
	}
	var link struct{ Type, URI, Name, MimeType string }
	if err := json.Unmarshal(got.Block, &link); err != nil || link.Type != "resource_link" || link.URI != got.URI || link.Name != name {
		a.t.Errorf("upload %q: the block is %s (%v), want a resource_link to %s", name, got.Block, err, got.URI)
	}
	return got
}

// captioned uploads the same bytes twice, which is one object, and sends the block with a caption.
func (a *attached) captioned() harness.Attachment {
	a.t.Helper()
	content := a.document(300 << 10)
	first, second := a.upload("Q3 report, final.txt", content), a.upload("Q3 report, final.txt", content)
	if first.URI != second.URI || !bytes.Equal(first.Block, second.Block) {
		a.t.Errorf("the same bytes twice are %s and %s, want one object", first.URI, second.URI)
	}
	caption := block("please read this")
	turn := a.send(a.lane, accepted{name: "an attachment with a caption", blocks: [][]byte{caption, first.Block}}, caption, first.Block)
	if turn.State != "REPLIED" {
		a.t.Errorf("an attachment with a caption: %s, want REPLIED", describe(turn))
	}
	if got := uris(turn); !slices.Equal(got, []string{"", first.URI}) {
		a.t.Errorf("the accepted blocks name %q, want the second to name %s", got, first.URI)
	}
	return first
}

func uris(turn harness.Turn) []string {
	var got []string
	for _, m := range turn.Messages {
		for _, b := range m.Blocks {
			got = append(got, b.URI)
		}
	}
	return got
}

// alone sends the block without a caption, which Hermes does not answer.
func (a *attached) alone(upload harness.Attachment) {
	a.t.Helper()
	turn := a.send(a.lane, accepted{name: "an attachment alone", blocks: [][]byte{upload.Block}, noRow: true}, upload.Block)
	if turn.State != "NO_REPLY" || turn.Reason() == "" || turn.Error.Message == "" {
		a.t.Errorf("an attachment alone: %s, want NO_REPLY that says why", describe(turn))
	}
}

// inline sends image, audio and blob data, spelled with and without escaped slashes and between white space.
func (a *attached) inline() int {
	a.t.Helper()
	pixel, err := base64.StdEncoding.DecodeString(onePixel)
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	image := slices.Concat(pixel, a.document(100<<10))
	audio := slices.Concat([]byte("RIFF$\x00\x00\x00WAVEfmt "), a.document(100<<10), []byte{0xff, 0xff, 0xff}) // makes slashes
	blob := slices.Concat([]byte{0, 1, 2, 0xff}, a.document(100<<10))
	encode := base64.StdEncoding.EncodeToString
	cases := []struct {
		name, block string
		content     []byte
	}{
		{"image", `{"type":"image","mimeType":"image\/png","data":"` + encode(image) + `","_meta":{"n":9007199254740993}}`, image},
		{"audio with escaped slashes", `{"data":"` + strings.ReplaceAll(encode(audio), "/", `\/`) + `","type":"audio","mimeType":"audio/wav"}`, audio},
		{"blob", `{"type":"resource","_meta":{"f":1.0e2},"resource":{"blob":"` + encode(blob) + `","uri":"blob://two"}}`, blob},
	}
	for _, c := range cases {
		a.contents[digest(c.content)] = true
		caption := block("caption of " + c.name)
		turn := a.send(a.lane, accepted{name: c.name, blocks: [][]byte{caption, []byte(c.block)}}, caption, spaced(c.block))
		if turn.State != "REPLIED" {
			a.t.Errorf("%s with a caption: %s, want REPLIED", c.name, describe(turn))
		}
		got := uris(turn)
		if len(got) != 2 || !strings.HasPrefix(got[1], "file:///artifacts/inbound/") {
			a.t.Errorf("%s: the accepted blocks name %q, want a file below artifacts/inbound", c.name, got)
			continue
		}
		file, err := a.Client.GetFile(a.ctx, a.lane.conv, strings.TrimPrefix(got[1], "file:///"), nil)
		if err != nil || !bytes.Equal(file.Body, c.content) {
			a.t.Errorf("%s: %s has %d bytes (%v), want the %d that were sent", c.name, got[1], len(file.Body), err, len(c.content))
		}
	}
	odd := `{"type":"image","mimeType":"image/png","data":"` + strings.Replace(encode(pixel), "A", `\u0041`, 1) + `"}`
	answer, err := a.Client.Raw(a.ctx, http.MethodPost, a.lane.conv.Path()+"/turns", nil, body([]byte(odd)))
	if err != nil || answer.Status != http.StatusBadRequest {
		a.t.Errorf("base64 with a \\u escape = %d %.200s (%v), want 400", answer.Status, answer.Body, err)
	}
	return len(cases)
}

// held lets turns wait with an attachment and with inline data, and looks into Postgres meanwhile.
func (a *attached) held() (rows int) {
	a.t.Helper()
	content := a.document(64 << 10)
	upload := a.upload("held.txt", content)
	path := strings.TrimPrefix(upload.URI, "file:///")
	if _, err := a.Client.DeleteFile(a.ctx, a.lane.conv, "workspace/none", nil); harness.ReasonOf(err) != "FILE_NOT_FOUND" {
		a.t.Errorf("remove what is not there = %v, want FILE_NOT_FOUND", err)
	}
	hang := block("HANG:e2")
	a.check(a.lane, accepted{name: "a turn that hangs", blocks: [][]byte{hang}}, a.post(a.lane, "a turn that hangs", hang))
	running := a.lane.last
	a.arrived("e2", 1)
	blob := a.document(64 << 10)
	a.contents[digest(blob)] = true
	inline := []byte(`{"type":"resource","resource":{"blob":"` + base64.StdEncoding.EncodeToString(blob) + `","uri":"blob://waiting"}}`)
	caption := block("after it")
	blocks := [][]byte{caption, upload.Block, inline}
	a.check(a.lane, accepted{name: "a turn that waits", blocks: blocks}, a.post(a.lane, "a turn that waits", blocks...))
	waiting := a.lane.last
	rows = a.notInPostgres()
	for name, do := range map[string]func() error{
		"remove": func() error { _, err := a.Client.DeleteFile(a.ctx, a.lane.conv, path, nil); return err },
		"replace": func() error {
			_, _, err := a.Client.PutFile(a.ctx, a.lane.conv, path, nil, strings.NewReader("other"), 5)
			return err
		},
	} {
		var api *harness.APIError
		if err := do(); !errors.As(err, &api) || api.Status != http.StatusConflict || api.Reason() != "FILE_HELD" || api.Details[0].Metadata["turnId"] != waiting {
			a.t.Errorf("%s a file that turn %s waits with = %v, want 409 FILE_HELD that names the turn", name, waiting, err)
		}
	}
	a.Model.Gate("e2").Release()
	for _, id := range []string{running, waiting} {
		if turn := a.wait(a.lane.conv, id); turn.State != "REPLIED" {
			a.t.Errorf("a turn around the held file: %s, want REPLIED", describe(turn))
		}
	}
	return rows + a.notInPostgres()
}

// needles are the marker as it could be found: itself, in hexadecimal, and what base64 makes of it at each of the three places.
func (a *attached) needles() (plain, encoded [][]byte) {
	plain = [][]byte{[]byte(a.marker)}
	for skip := range 3 {
		whole := base64.StdEncoding.EncodeToString(append(make([]byte, skip), a.marker...))
		encoded = append(encoded, []byte(whole[4:len(whole)-4]))
	}
	return plain, encoded
}

// notInPostgres reads every row of every table as text and as the bytes it prints in hexadecimal.
func (a *attached) notInPostgres() (rows int) {
	a.t.Helper()
	plain, encoded := a.needles()
	var texts []string
	for _, n := range slices.Concat(plain, encoded) {
		texts = append(texts, string(n), hex.EncodeToString(n))
	}
	var tables []string
	if err := a.Database.Query(a.ctx, `SELECT array_agg(quote_ident(table_schema) || '.' || quote_ident(table_name)) FROM information_schema.tables
		WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND table_type = 'BASE TABLE'`, &tables); err != nil {
		a.t.Fatalf("list the tables: %v", err)
	}
	for _, table := range tables {
		var all []string
		if err := a.Database.Query(a.ctx, "SELECT coalesce(array_agg(t::text), '{}') FROM "+table+" t", &all); err != nil {
			a.t.Fatalf("dump %s: %v", table, err)
		}
		rows += len(all)
		for _, row := range all {
			for _, text := range texts {
				if strings.Contains(row, text) {
					a.t.Errorf("a row of %s holds the bytes of a file, as %q", table, text)
				}
			}
		}
	}
	return rows
}

// told wants a file.changed event for every file, once.
func (a *attached) told(events *harness.Events) {
	a.t.Helper()
	last, _, err := a.Client.PutFile(a.ctx, a.lane.conv, "workspace/last", nil, strings.NewReader("last"), 4)
	if err != nil {
		a.t.Fatalf("write the last file: %v", err)
	}
	written := map[string]int{}
	if _, err := events.Until(func(ev harness.Event) bool {
		if ev.Type == "file.changed" && ev.File != nil && ev.File.Change == "written" {
			written[ev.File.URI]++
		}
		return ev.Type == "file.changed" && ev.File != nil && strings.HasSuffix(ev.File.URI, "/workspace/last")
	}); err != nil {
		a.t.Fatalf("read events up to file.changed of %s: %v (seen: %v)", last.URI, err, written)
	}
	listed, _, err := a.Client.Files(a.ctx, a.lane.conv, "artifacts/inbound/")
	if err != nil {
		a.t.Fatalf("list the attachments: %v", err)
	}
	if len(listed) != len(a.contents) {
		a.t.Errorf("%d files below artifacts/inbound, want the %d written", len(listed), len(a.contents))
	}
	for _, f := range listed {
		if written[f.URI] != 1 {
			a.t.Errorf("%d file.changed events for %s, want 1", written[f.URI], f.URI)
		}
	}
}

// shown wants the attachment as an entry of its own in the transcript.
func (a *attached) shown(upload harness.Attachment) {
	a.t.Helper()
	n := 0
	for _, m := range a.transcript(a.lane.conv) {
		if m.Attachment == nil || m.Attachment.URI != upload.URI {
			continue
		}
		n++
		if got := m.Attachment; got.Size != upload.Size || got.SHA256 != upload.SHA256 || got.MimeType != upload.MimeType || got.Name == "" || m.Locator.MessageID != 0 || m.Text != "" {
			a.t.Errorf("the transcript's attachment is %+v with locator %v, want %+v without one", *got, m.Locator, upload)
		}
	}
	if n != 2 {
		a.t.Errorf("the transcript shows the attachment %d times, want once for each of the 2 turns that brought it", n)
	}
}

// stored opens a copied-out database and wants every content at exactly one inode with one name.
func (a *attached) stored() {
	a.t.Helper()
	copied, err := a.Export(a.ctx, a.org)
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	inodes, err := a.Inodes(a.ctx, copied)
	if err != nil {
		a.t.Fatalf("read the exported AgentFS: %v", err)
	}
	found := map[string][]string{}
	for _, i := range inodes {
		found[i.SHA256] = append(found[i.SHA256], fmt.Sprintf("%d %s nlink %d", i.Ino, i.Path, i.Nlink))
	}
	for sum := range a.contents {
		if len(found[sum]) != 1 || !strings.HasSuffix(found[sum][0], "nlink 1") || !strings.Contains(found[sum][0], "/conversations/attached/artifacts/inbound/") {
			a.t.Errorf("content %s is at %q, want one inode with one name below the conversation's artifacts/inbound", sum, found[sum])
		}
	}
}

// nowhereElse looks for the bytes in every file of the system.
func (a *attached) nowhereElse(upload harness.Attachment) string {
	a.t.Helper()
	plain, encoded := a.needles()
	own := "data/agentfs/organizations/" + a.org + ".db"
	// The recording of the child's stdin is this check's own instrument, and inline data is at the child's stdin. What Hermes keeps
	// of an image it was sent is Hermes's.
	sessions := "data/cell/sessions/" + a.org + "/"
	places := map[string]bool{}
	for _, texts := range [][][]byte{plain, encoded} {
		found, err := harness.Holding(a.Dir, texts...)
		if err != nil {
			a.t.Fatalf("search the data directories: %v", err)
		}
		for path := range found {
			switch {
			case strings.HasPrefix(path, "export-"):
			case path == own || path == own+"-wal":
				places["the AgentFS database"] = true
			case strings.HasPrefix(path, sessions+"stdin."), strings.HasPrefix(path, sessions+"state.db"):
			default:
				a.t.Errorf("%s holds the bytes of %s or of inline data", path, upload.URI)
			}
		}
	}
	if !places["the AgentFS database"] {
		a.t.Errorf("the search found nothing, not even in %s: it could not have found a copy", own)
	}
	return strings.Join(slices.Sorted(maps.Keys(places)), ", ")
}

// gone removes a held file below everybody's feet, by a restore: the turn is not sent without it.
func (a *attached) gone() string {
	a.t.Helper()
	upload := a.upload("gone.txt", a.document(4<<10))
	hang, caption := block("HANG:e2-gone"), block("too late")
	a.check(a.lane, accepted{name: "a turn that hangs", blocks: [][]byte{hang}}, a.post(a.lane, "a turn that hangs", hang))
	running := a.lane.last
	a.arrived("e2-gone", 1)
	waiting := a.post(a.lane, "a turn whose file goes", caption, upload.Block)
	copied, err := a.Export(a.ctx, a.org)
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	path := "/conversations/attached/" + strings.TrimPrefix(upload.URI, "file:///")
	if err := a.Plant(a.ctx, copied, harness.Planted{Path: path}); err != nil {
		a.t.Fatalf("remove %s from the export: %v", path, err)
	}
	if err := a.Restore(a.ctx, a.org, copied); err != nil {
		a.t.Fatalf("restore: %v", err)
	}
	a.Model.Gate("e2-gone").Release()
	a.wait(a.lane.conv, running)
	turn := a.wait(a.lane.conv, waiting.TurnID)
	if turn.State != "FAILED" || turn.Reason() != "FILE_GONE" {
		a.t.Errorf("a turn whose file is gone: %s, want FAILED FILE_GONE", describe(turn))
	}
	answer, err := a.Client.Raw(a.ctx, http.MethodPost, a.lane.conv.Path()+"/turns", nil, body(caption, upload.Block))
	if err != nil || harness.ReasonOf(answer.Err()) != "INVALID_FILE_URI" {
		a.t.Errorf("its block again = %d %.200s (%v), want 400 INVALID_FILE_URI", answer.Status, answer.Body, err)
	}
	a.compare()
	return "a file gone before dispatch FAILED FILE_GONE, nothing sent"
}
