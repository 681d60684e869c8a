package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	"humanwork.internal/pkg/errs"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/turnbody"
	"humanwork.internal/services/gateway/internal/wire"
)

// ReasonInvalidIdempotencyKey is the reason of a malformed Idempotency-Key.
const ReasonInvalidIdempotencyKey errs.Reason = "INVALID_IDEMPOTENCY_KEY"

const (
	maxIdempotencyKey = 255
	// maxWait is the longest a request for a turn is held; longer waits are shortened to it.
	maxWait = 300 * time.Second
	// waitMargin is what the call may take beside the wait itself.
	waitMargin = 10 * time.Second
)

func (s *Server) submitTurn(w http.ResponseWriter, r *edge.Request) error {
	key, err := idempotencyKey(r.Header.Values("Idempotency-Key"))
	if err != nil {
		return err
	}
	sub, err := turnbody.Parse(r.Body)
	if err != nil {
		return err
	}
	req := &ingressv1.SubmitTurnRequest{OrganizationId: r.IDs["organizationId"], ConversationId: r.IDs["conversationId"],
		IdempotencyKey: key, BusyPolicy: busyPolicy(sub.BusyPolicy)}
	for _, m := range sub.Messages {
		req.Messages = append(req.Messages, &ingressv1.InboundMessage{Blocks: m.Blocks})
	}
	resp, err := s.write.SubmitTurn(r.Context(), req)
	if err != nil {
		return err
	}
	w.Header().Set("Location", strings.TrimSuffix(r.URL.EscapedPath(), "/")+"/"+resp.GetTurn().GetTurnId())
	if resp.GetReplayed() {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	return writeJSON(w, http.StatusAccepted, wire.NewSubmitted(resp.GetTurn()))
}

func busyPolicy(p turnbody.BusyPolicy) ingressv1.BusyPolicy {
	if p == turnbody.Reject {
		return ingressv1.BusyPolicy_BUSY_POLICY_REJECT
	}
	return ingressv1.BusyPolicy_BUSY_POLICY_ENQUEUE
}

// idempotencyKey returns the one key of a request, "" if it has none.
func idempotencyKey(values []string) (string, error) {
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", errs.New(errs.Invalid, ReasonInvalidIdempotencyKey, "the header Idempotency-Key is there more than once")
	}
	key := values[0]
	visible := strings.IndexFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
	if len(key) < 1 || len(key) > maxIdempotencyKey || !visible {
		return "", errs.New(errs.Invalid, ReasonInvalidIdempotencyKey, "the header Idempotency-Key must be 1 to %d visible ASCII characters", maxIdempotencyKey)
	}
	return key, nil
}

func (s *Server) getTurn(w http.ResponseWriter, r *edge.Request) error {
	var wait time.Duration
	if r.Query.Has("wait") {
		var err error
		if wait, err = time.ParseDuration(r.Query.Get("wait")); err != nil || wait < 0 {
			return edge.InvalidParameter("wait", "must be a duration such as 30s")
		}
		wait = min(wait, maxWait)
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait+waitMargin)
	defer cancel()
	resp, err := s.read.GetTurn(ctx, &ingressv1.GetTurnRequest{OrganizationId: r.IDs["organizationId"],
		ConversationId: r.IDs["conversationId"], TurnId: r.IDs["turnId"], WaitMs: wait.Milliseconds()})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, wire.NewTurn(resp.GetTurn()))
}

func (s *Server) listTurns(w http.ResponseWriter, r *edge.Request) error {
	size, err := pageSize(r, 200)
	if err != nil {
		return err
	}
	token, err := pageToken(r)
	if err != nil {
		return err
	}
	resp, err := s.read.ListTurns(r.Context(), &ingressv1.ListTurnsRequest{OrganizationId: r.IDs["organizationId"],
		ConversationId: r.IDs["conversationId"], PageSize: size, PageToken: token})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, wire.NewTurnList(resp))
}

func (s *Server) cancelTurn(w http.ResponseWriter, r *edge.Request) error {
	resp, err := s.write.CancelTurn(r.Context(), &ingressv1.CancelTurnRequest{OrganizationId: r.IDs["organizationId"],
		ConversationId: r.IDs["conversationId"], TurnId: r.IDs["turnId"]})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, wire.NewTurn(resp.GetTurn()))
}

func (s *Server) listTranscript(w http.ResponseWriter, r *edge.Request) error {
	size, err := pageSize(r, 500)
	if err != nil {
		return err
	}
	token, err := pageToken(r)
	if err != nil {
		return err
	}
	resp, err := s.read.ListTranscript(r.Context(), &ingressv1.ListTranscriptRequest{OrganizationId: r.IDs["organizationId"],
		ConversationId: r.IDs["conversationId"], PageSize: size, PageToken: token})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, wire.NewTranscript(resp))
}
