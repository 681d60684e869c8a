package server

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"humanwork.internal/pkg/errs"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	"humanwork.internal/services/ingress/internal/turn"
)

// defaultTranscriptPage is the page size of a caller who names none.
const defaultTranscriptPage = 100

// cursor is a page token of ListTranscript: the page of sessiondb's to read, and the place of the
// last entry that was given. A page of sessiondb's is read again if the attachments among its
// messages did not leave room for all of them.
type cursor struct {
	after    turn.Place
	messages string // sessiondb's own token
}

func (c cursor) String() string {
	return fmt.Sprintf("%x.%x.%x.%x.%s", c.after.Watermark, c.after.Position, c.after.Message, c.after.Block, c.messages)
}

func parseCursor(s string) (c cursor, err error) {
	if s == "" {
		return c, nil
	}
	// The rest of the token is sessiondb's to judge.
	numbers, rest, _ := cutAfter(s, 4)
	c.messages = rest
	p := &c.after
	_, err = fmt.Sscanf(numbers, "%x.%x.%x.%x.", &p.Watermark, &p.Position, &p.Message, &p.Block)
	if err != nil || p.Watermark < 0 || p.Position < 0 || p.Message < 0 || p.Block < 0 || c.String() != s {
		return cursor{}, errs.New(errs.Invalid, ReasonPageToken, "the page token is not one this service gave")
	}
	return c, nil
}

// cutAfter cuts s behind its nth dot.
func cutAfter(s string, n int) (before, after string, ok bool) {
	at := 0
	for range n {
		i := strings.IndexByte(s[at:], '.')
		if i < 0 {
			return s, "", false
		}
		at += i + 1
	}
	return s[:at], s[at:], true
}

// entry is a message or an attachment with its place.
type entry struct {
	place turn.Place
	out   *ingressv1.TranscriptMessage
}

// ListTranscript implements the contract. An attachment stands behind all messages up to its turn's
// watermark, which is where the turn's own begin. Later turns have no lower watermark, so that
// nothing ever comes to stand before what was listed.
func (s *Server) ListTranscript(ctx context.Context, r *ingressv1.ListTranscriptRequest) (*ingressv1.ListTranscriptResponse, error) {
	from, err := parseCursor(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := int(r.GetPageSize())
	if size == 0 {
		size = defaultTranscriptPage
	}
	c := turn.Conversation{Organization: r.GetOrganizationId(), ID: r.GetConversationId()}
	messages, page, err := s.messages(ctx, c, from, int32(size))
	if err != nil {
		return nil, err
	}
	// What stands behind the page's last message may be found among the next page's.
	next := cursor{after: from.after, messages: page.GetNextPageToken()}
	for _, m := range page.GetMessages() {
		next.after = later(next.after, turn.Place{Watermark: m.GetMessageId()})
	}
	below := next.after.Watermark
	if next.messages == "" {
		below = math.MaxInt64
	}
	attachments, err := s.cfg.Store.Attachments(ctx, c, from.after, below, size+1)
	if err != nil {
		return nil, s.fromStore(err)
	}
	entries := merge(messages, attachments)
	out := &ingressv1.ListTranscriptResponse{}
	switch {
	case len(entries) > size:
		entries = entries[:size]
		out.NextPageToken = cursor{after: entries[size-1].place, messages: from.messages}.String()
	case next.messages != "":
		out.NextPageToken = next.String()
	}
	for _, e := range entries {
		out.Messages = append(out.Messages, e.out)
	}
	return out, nil
}

func later(a, b turn.Place) turn.Place {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// messages reads a page of sessiondb's, and returns those of its messages that are shown and were
// not given before.
func (s *Server) messages(ctx context.Context, c turn.Conversation, from cursor, size int32) ([]entry, *sessiondbv1.ListMessagesResponse, error) {
	p, err := s.cfg.Directory.Lookup(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	page, err := s.cfg.Sessions.Transcript(ctx, p, c.Organization, size, from.messages)
	if err != nil {
		s.cfg.Directory.Forget(c)
		return nil, nil, err
	}
	var doubtful []int64
	for _, m := range page.GetMessages() {
		if m.GetFollowsLength() {
			doubtful = append(doubtful, m.GetMessageId())
		}
	}
	hidden := make(map[int64]bool)
	if len(doubtful) > 0 {
		ids, err := s.cfg.Store.Unaccepted(ctx, c, doubtful)
		if err != nil {
			return nil, nil, s.fromStore(err)
		}
		for _, id := range ids {
			hidden[id] = true
		}
	}
	var out []entry
	for _, m := range page.GetMessages() {
		place := turn.Place{Watermark: m.GetMessageId()}
		if !hidden[m.GetMessageId()] && from.after.Compare(place) < 0 {
			out = append(out, entry{place, transcriptMessage(p.SessionID, m)})
		}
	}
	return out, page, nil
}

// merge puts attachments where they belong among messages; both are in order.
func merge(messages []entry, attachments []turn.Attachment) []entry {
	out := make([]entry, 0, len(messages)+len(attachments))
	for _, a := range attachments {
		for len(messages) > 0 && messages[0].place.Compare(a.Place) < 0 {
			out, messages = append(out, messages[0]), messages[1:]
		}
		f := a.File
		out = append(out, entry{a.Place, &ingressv1.TranscriptMessage{CreateTime: timestamppb.New(a.Created), Attachment: &ingressv1.Attachment{
			Uri: f.URI, Name: f.Name, MimeType: f.MimeType, Size: f.Size, Sha256: hex.EncodeToString(f.SHA256)}}})
	}
	return append(out, messages...)
}
