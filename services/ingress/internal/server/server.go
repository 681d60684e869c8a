// Package server answers ingress's contract: it validates, calls, converts.
package server

import (
	"context"
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
	Replay(ctx context.Context, s store.Submission) (store.Acceptance, bool, error)
	Accept(ctx context.Context, s store.Submission, direct *store.Direct) (store.Acceptance, error)
	AppendFiles(ctx context.Context, c turn.Conversation, generation string, changes []turn.FileChange) ([]turn.Event, error)
	Cancel(ctx context.Context, c turn.Conversation, turnID string) (store.CancelOutcome, error)
}

// Files is the conversation's files. Its calls fail rather than wait for agentfs.
type Files interface {
	// Write stores an attachment for the caller, once for its name and content.
	Write(ctx context.Context, c turn.Conversation, name string, data []byte) (turn.File, error)
	// HoldAll checks the files and keeps them in place for the turn; it returns one for each URI, in
	// order, without MIME types.
	HoldAll(ctx context.Context, c turn.Conversation, turnID string, uris []string) ([]turn.File, error)
}

// Config is what a server works with.
type Config struct {
	Store      Store
	Directory  Directory
	Sessions   Sessions
	Files      Files
	Queue      *queue.Queue
	Hub        *hub.Hub
	Limits     block.Limits
	MaxWaiting int
	Suspect    func() // the store failed
	// Stopping is closed when waiting calls and streams have to end.
	Stopping <-chan struct{}
}

// Server implements the services of the contract.
type Server struct {
	ingressv1.UnimplementedFileEventServiceServer
	ingressv1.UnimplementedIngressServiceServer
	ingressv1.UnimplementedIngressReadServiceServer
	cfg Config
}

// New makes a server.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// Policy says who may call what: members of the organization and administrators; agentfs asks
// about turns that hold files, and appends what happened to files.
func Policy() rpc.Policy {
	const agentfs = rpc.RoleService + "agentfs"
	return rpc.Policy{}.
		Allow([]string{rpc.RoleMember, rpc.RoleAdmin},
			ingressv1.IngressService_SubmitTurn_FullMethodName,
			ingressv1.IngressService_CancelTurn_FullMethodName,
			ingressv1.IngressReadService_ListTurns_FullMethodName,
			ingressv1.IngressReadService_ListTranscript_FullMethodName,
			ingressv1.IngressReadService_StreamEvents_FullMethodName).
		Allow([]string{rpc.RoleMember, rpc.RoleAdmin, agentfs}, ingressv1.IngressReadService_GetTurn_FullMethodName).
		Allow([]string{agentfs}, ingressv1.FileEventService_AppendFileChanges_FullMethodName)
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
	if len(out.Events) > 0 && hasFiles(out.Turn) {
		s.cfg.Queue.Release(c, out.Turn.ID) // withdrawn: it will not be dispatched
	}
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
