// Package server answers ingress's contract: it validates, calls, converts.
package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	"humanwork.internal/services/ingress/internal/block"
	"humanwork.internal/services/ingress/internal/hub"
	"humanwork.internal/services/ingress/internal/queue"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

// Directory knows which conversations exist and where they live.
type Directory interface {
	Exists(ctx context.Context, c turn.Conversation) error
	Known(c turn.Conversation) (queue.Place, bool)
	Lookup(ctx context.Context, c turn.Conversation) (queue.Place, error)
	Forget(c turn.Conversation)
}

// Sessions reads canonical messages.
type Sessions interface {
	Messages(ctx context.Context, p queue.Place, organization, session string, ids []int64) ([]*sessiondbv1.Message, error)
	Transcript(ctx context.Context, p queue.Place, organization string, size int32, token string) (*sessiondbv1.ListMessagesResponse, error)
}

// Store is what the server reads and writes itself.
type Store interface {
	store.Reads
	Accept(ctx context.Context, s store.Submission, direct *store.Direct) (store.Acceptance, error)
	Cancel(ctx context.Context, c turn.Conversation, turnID string) (store.CancelOutcome, error)
}

// Config is what a server works with.
type Config struct {
	Store      Store
	Directory  Directory
	Sessions   Sessions
	Queue      *queue.Queue
	Hub        *hub.Hub
	Limits     block.Limits
	MaxWaiting int
	Suspect    func() // the store failed
	// Stopping is closed when waiting calls and streams have to end.
	Stopping <-chan struct{}
}

// Server implements both services of the contract.
type Server struct {
	ingressv1.UnimplementedIngressServiceServer
	ingressv1.UnimplementedIngressReadServiceServer
	cfg Config
}

// New makes a server.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// Policy says who may call what: members of the organization and administrators.
func Policy() rpc.Policy {
	return rpc.Policy{}.Allow([]string{rpc.RoleMember, rpc.RoleAdmin},
		ingressv1.IngressService_SubmitTurn_FullMethodName,
		ingressv1.IngressService_CancelTurn_FullMethodName,
		ingressv1.IngressReadService_GetTurn_FullMethodName,
		ingressv1.IngressReadService_ListTurns_FullMethodName,
		ingressv1.IngressReadService_ListTranscript_FullMethodName,
		ingressv1.IngressReadService_StreamEvents_FullMethodName,
	)
}

type conversationNamer interface {
	GetOrganizationId() string
	GetConversationId() string
}

// conversation returns the conversation a request names, if it exists.
func (s *Server) conversation(ctx context.Context, r conversationNamer) (turn.Conversation, error) {
	c := turn.Conversation{Organization: r.GetOrganizationId(), ID: r.GetConversationId()}
	return c, s.cfg.Directory.Exists(ctx, c)
}

// SubmitTurn implements the contract.
func (s *Server) SubmitTurn(ctx context.Context, r *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error) {
	if err := checkKey(r.GetIdempotencyKey()); err != nil {
		return nil, err
	}
	c, err := s.conversation(ctx, r)
	if err != nil {
		return nil, err
	}
	raws := make([][][]byte, len(r.GetMessages()))
	for i, m := range r.GetMessages() {
		raws[i] = m.GetBlocks()
	}
	blocks, err := block.ParseTurn(raws, s.cfg.Limits)
	if err != nil {
		return nil, fromBlock(err)
	}
	reject := r.GetBusyPolicy() == ingressv1.BusyPolicy_BUSY_POLICY_REJECT
	id := newID()
	sub := store.Submission{Conversation: c, TurnID: id, IdempotencyKey: r.GetIdempotencyKey(), BodySHA256: digest(blocks, reject),
		MaxWaiting: s.cfg.MaxWaiting, RejectBusy: reject, Messages: make([]turn.Message, len(blocks))}
	for i, list := range blocks {
		m := turn.Message{InboundID: id + "-" + strconv.Itoa(i), Blocks: make([]turn.Block, len(list))}
		for j, b := range list {
			m.Blocks[j] = turn.Block{Type: b.Type, SHA256: b.SHA256[:], Size: int64(len(b.Raw)), Raw: b.Raw}
		}
		sub.Messages[i] = m
	}
	a, err := s.accept(ctx, sub)
	if err != nil {
		return nil, s.fromStore(err)
	}
	t, err := s.full(ctx, a.Turn)
	if err != nil {
		return nil, err
	}
	return &ingressv1.SubmitTurnResponse{Turn: t, Replayed: a.Replayed}, nil
}

// commitDeadline bounds a change that must not be abandoned because its caller gave up.
const commitDeadline = 20 * time.Second

// accept stores the turn and hands it on.
func (s *Server) accept(ctx context.Context, sub store.Submission) (store.Acceptance, error) {
	// A caller that gives up must not leave a turn that is accepted, or claimed, and known to nobody.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitDeadline)
	defer cancel()
	c := sub.Conversation
	var direct *store.Direct
	if p, ok := s.cfg.Directory.Known(c); ok {
		direct = s.cfg.Queue.Direct(c, p)
	}
	a, err := s.cfg.Store.Accept(ctx, sub, direct)
	switch {
	case errors.Is(err, store.ErrKeyReused), errors.Is(err, store.ErrQueueFull), errors.Is(err, store.ErrBusy):
		return a, err
	case err != nil:
		s.cfg.Queue.Doubt(c, sub.TurnID)
		return a, err
	case a.Replayed:
		return a, nil
	}
	s.cfg.Queue.Accepted(a)
	events := []turn.Event{{Sequence: a.Sequence, Type: turn.EventAccepted, TurnID: a.Turn.ID, Created: a.Turn.Created}}
	if a.Claimed != nil {
		events = append(events, turn.Event{Sequence: a.Claimed.Sequence, Type: turn.EventStarted, TurnID: a.Turn.ID, Created: a.Turn.Created})
	}
	s.cfg.Hub.Publish(c, events...)
	return a, nil
}

func checkKey(key string) error {
	bad := len(key) > 255
	for i := range len(key) {
		bad = bad || key[i] < 0x21 || key[i] > 0x7e
	}
	if bad {
		return errs.New(errs.Invalid, ReasonKeyMalformed, "an idempotency key is 1 to 255 visible ASCII characters")
	}
	return nil
}

// digest is the body's: the blocks' digests in their messages, and the policy.
func digest(messages [][]block.Block, reject bool) [32]byte {
	h := sha256.New()
	var n [8]byte
	for _, m := range messages {
		binary.BigEndian.PutUint64(n[:], uint64(len(m)))
		h.Write(n[:])
		for _, b := range m {
			h.Write(b.SHA256[:])
		}
	}
	if reject {
		h.Write([]byte("REJECT"))
	}
	return [32]byte(h.Sum(nil))
}

// newID returns an id that sorts by time: 48 bits of milliseconds and 80 random ones.
func newID() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(time.Now().UnixMilli())<<16)
	_, _ = rand.Read(b[6:]) // never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}

// CancelTurn implements the contract.
func (s *Server) CancelTurn(ctx context.Context, r *ingressv1.CancelTurnRequest) (*ingressv1.CancelTurnResponse, error) {
	c, err := s.conversation(ctx, r)
	if err != nil {
		return nil, err
	}
	out, err := s.cfg.Store.Cancel(ctx, c, r.GetTurnId())
	if err != nil {
		return nil, s.fromStore(err)
	}
	s.cfg.Hub.Publish(c, out.Events...)
	if out.Run != nil {
		// The wish is durable: if the supervisor is not reached now, whoever settles the turn
		// repeats it, and so may the caller.
		if err := s.cfg.Queue.Cancel(ctx, *out.Run); err != nil {
			return nil, err
		}
	}
	t, err := s.full(ctx, out.Turn)
	if err != nil {
		return nil, err
	}
	return &ingressv1.CancelTurnResponse{Turn: t}, nil
}

// GetTurn implements the contract.
func (s *Server) GetTurn(ctx context.Context, r *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
	c, err := s.conversation(ctx, r)
	if err != nil {
		return nil, err
	}
	limit, stop := context.WithTimeout(ctx, time.Duration(r.GetWaitMs())*time.Millisecond)
	defer stop()
	for {
		signs, forget := s.cfg.Hub.AwaitEnd(c, r.GetTurnId())
		t, err := s.cfg.Store.Turn(ctx, c, r.GetTurnId())
		if err != nil {
			forget()
			return nil, s.fromStore(err)
		}
		var replies []*ingressv1.Reply
		if !t.State.Ended() && limit.Err() == nil {
			var end *turn.End
			end, replies = s.await(limit, stop, c, signs)
			if end == nil {
				forget()
				continue
			}
			t = t.With(*end)
		}
		forget()
		out, err := s.answer(ctx, t, replies)
		if err != nil {
			return nil, err
		}
		return &ingressv1.GetTurnResponse{Turn: out}, nil
	}
}

// await returns the end this process commits, with the replies that were read meanwhile, or nil if
// the turn has to be read: it may have ended, or limit has.
func (s *Server) await(limit context.Context, stop func(), c turn.Conversation, signs <-chan hub.Sign) (*turn.End, []*ingressv1.Reply) {
	var replies []*ingressv1.Reply
	for {
		select {
		case sign := <-signs:
			if sign.Coming == nil {
				return sign.End, replies
			}
			// Not to be told to anybody before the end is committed. What fails here is read again,
			// and told, by answer.
			coming, err := s.full(limit, turn.Turn{Conversation: c, State: turn.Replied, Replies: sign.Coming})
			if err == nil {
				replies = coming.GetReplies()
			}
		case <-s.cfg.Stopping:
			stop()
			return nil, nil
		case <-limit.Done():
			return nil, nil
		}
	}
}

// answer converts a turn with replies that were read before, if they were.
func (s *Server) answer(ctx context.Context, t turn.Turn, replies []*ingressv1.Reply) (*ingressv1.Turn, error) {
	if replies == nil {
		return s.full(ctx, t)
	}
	out := toTurn(t)
	out.Replies = replies
	return out, nil
}

// ListTurns implements the contract.
func (s *Server) ListTurns(ctx context.Context, r *ingressv1.ListTurnsRequest) (*ingressv1.ListTurnsResponse, error) {
	after := int64(0)
	if tok := r.GetPageToken(); tok != "" {
		var err error
		if after, err = strconv.ParseInt(tok, 36, 64); err != nil || after < 1 {
			return nil, errs.New(errs.Invalid, ReasonPageToken, "the page token is not one this service gave")
		}
	}
	c, err := s.conversation(ctx, r)
	if err != nil {
		return nil, err
	}
	size := int(r.GetPageSize())
	if size == 0 {
		size = 50
	}
	turns, err := s.cfg.Store.Turns(ctx, c, after, size+1)
	if err != nil {
		return nil, s.fromStore(err)
	}
	out := &ingressv1.ListTurnsResponse{}
	if len(turns) > size {
		turns = turns[:size]
		out.NextPageToken = strconv.FormatInt(turns[size-1].Position, 36)
	}
	out.Turns, err = s.withReplies(ctx, c, turns)
	return out, err
}

// ListTranscript implements the contract.
func (s *Server) ListTranscript(ctx context.Context, r *ingressv1.ListTranscriptRequest) (*ingressv1.ListTranscriptResponse, error) {
	c := turn.Conversation{Organization: r.GetOrganizationId(), ID: r.GetConversationId()}
	p, err := s.cfg.Directory.Lookup(ctx, c)
	if err != nil {
		return nil, err
	}
	page, err := s.cfg.Sessions.Transcript(ctx, p, c.Organization, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		s.cfg.Directory.Forget(c)
		return nil, err
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
			return nil, s.fromStore(err)
		}
		for _, id := range ids {
			hidden[id] = true
		}
	}
	out := &ingressv1.ListTranscriptResponse{NextPageToken: page.GetNextPageToken()}
	for _, m := range page.GetMessages() {
		if !hidden[m.GetMessageId()] {
			out.Messages = append(out.Messages, transcriptMessage(p.SessionID, m))
		}
	}
	return out, nil
}
