package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"time"

	"humanwork.internal/pkg/errs"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/ingress/internal/block"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

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
	a, err := s.submit(ctx, sub, blocks)
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

// submit accepts a turn whose blocks may have files. Of those that have none nothing is asked that
// was not asked before there were files.
func (s *Server) submit(ctx context.Context, sub store.Submission, blocks [][]block.Block) (store.Acceptance, error) {
	if !slices.ContainsFunc(blocks, func(list []block.Block) bool { return slices.ContainsFunc(list, needsFile) }) {
		return s.accept(ctx, sub, nil)
	}
	// A replay must not depend on files, which may be gone by now, and a turn that is refused must
	// not leave any.
	if a, found, err := s.cfg.Store.Replay(ctx, sub); found || err != nil {
		return a, err
	}
	if err := s.keepFiles(ctx, sub, blocks); err != nil {
		return store.Acceptance{}, err
	}
	var whole [][]byte
	for _, list := range blocks {
		for _, b := range list {
			whole = append(whole, b.Raw)
		}
	}
	a, err := s.accept(ctx, sub, whole)
	// After any other error the turn may have been accepted: if not, agentfs finds that out itself.
	if isRefusal(err) || err == nil && a.Replayed {
		s.cfg.Queue.Release(sub.Conversation, sub.TurnID)
	}
	return a, err
}

func isRefusal(err error) bool {
	return errors.Is(err, store.ErrKeyReused) || errors.Is(err, store.ErrQueueFull) || errors.Is(err, store.ErrBusy)
}

// accept stores the turn and hands it on. whole are the blocks' bytes if the submission's lack
// some.
func (s *Server) accept(ctx context.Context, sub store.Submission, whole [][]byte) (store.Acceptance, error) {
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
	case isRefusal(err):
		return a, err
	case err != nil:
		s.cfg.Queue.Doubt(c, sub.TurnID)
		return a, err
	case a.Replayed:
		return a, nil
	}
	if a.Claimed != nil && whole != nil {
		// The files were checked a moment ago, and what was cut out of the blocks is still here.
		a.Claimed.Run.Ready = true
		for i := range a.Claimed.Run.Blocks {
			a.Claimed.Run.Blocks[i].Raw, a.Claimed.Run.Blocks[i].Data = whole[i], nil
		}
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
