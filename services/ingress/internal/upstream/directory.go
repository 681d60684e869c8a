package upstream

import (
	"container/list"
	"context"
	"sync"

	"google.golang.org/grpc"

	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	"humanwork.internal/services/ingress/internal/queue"
	"humanwork.internal/services/ingress/internal/turn"
)

// Directory asks routing where conversations live and remembers it: a conversation's session
// never changes, an organization's placement until somebody doubts it.
type Directory struct {
	routing  routingv1.RoutingReadServiceClient
	sessions *lru[turn.Conversation, string]
	places   *lru[string, *routingv1.Placement]
}

// NewDirectory remembers at most size conversations and as many organizations.
func NewDirectory(routing grpc.ClientConnInterface, size int) *Directory {
	return &Directory{routing: routingv1.NewRoutingReadServiceClient(routing),
		sessions: newLRU[turn.Conversation, string](size), places: newLRU[string, *routingv1.Placement](size)}
}

// Exists returns an error unless the conversation exists; it asks routing once.
func (d *Directory) Exists(ctx context.Context, c turn.Conversation) error {
	if _, ok := d.sessions.get(c); ok {
		return nil
	}
	_, err := d.Lookup(ctx, c)
	return err
}

// Known returns the place without asking anybody.
func (d *Directory) Known(c turn.Conversation) (queue.Place, bool) {
	session, known := d.sessions.get(c)
	place, placed := d.places.get(c.Organization)
	if !known || !placed {
		return queue.Place{}, false
	}
	return toPlace(session, place), true
}

// Lookup is Locate for callers that rather fail than wait for routing to come back.
func (d *Directory) Lookup(ctx context.Context, c turn.Conversation) (queue.Place, error) {
	return d.locate(ctx, c)
}

// Locate implements queue.Directory.
func (d *Directory) Locate(ctx context.Context, c turn.Conversation) (queue.Place, error) {
	return d.locate(ctx, c, grpc.WaitForReady(true))
}

func (d *Directory) locate(ctx context.Context, c turn.Conversation, opts ...grpc.CallOption) (queue.Place, error) {
	session, known := d.sessions.get(c)
	place, placed := d.places.get(c.Organization)
	switch {
	case !known:
		m, err := d.routing.GetConversation(ctx, &routingv1.GetConversationRequest{OrganizationId: c.Organization, ConversationId: c.ID}, opts...)
		if err != nil {
			return queue.Place{}, err
		}
		session, place = m.GetConversation().GetSessionId(), m.GetPlacement()
		d.sessions.put(c, session)
		d.places.put(c.Organization, place)
	case !placed:
		m, err := d.routing.GetPlacement(ctx, &routingv1.GetPlacementRequest{OrganizationId: c.Organization}, opts...)
		if err != nil {
			return queue.Place{}, err
		}
		place = m.GetPlacement()
		d.places.put(c.Organization, place)
	}
	return toPlace(session, place), nil
}

func toPlace(session string, p *routingv1.Placement) queue.Place {
	return queue.Place{SessionID: session, Epoch: p.GetEpoch(), SupervisorTarget: p.GetSupervisorTarget(), SessionDBTarget: p.GetSessiondbTarget()}
}

// Forget implements queue.Directory.
func (d *Directory) Forget(c turn.Conversation) { d.places.drop(c.Organization) }

// lru is a bounded map that forgets what was not used for longest.
type lru[K comparable, V any] struct {
	size int

	mu    sync.Mutex
	order *list.List // of entry, most recent first
	items map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func newLRU[K comparable, V any](size int) *lru[K, V] {
	return &lru[K, V]{size: size, order: list.New(), items: make(map[K]*list.Element)}
}

func (l *lru[K, V]) get(k K) (v V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.items[k]
	if !ok {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(entry[K, V]).value, true
}

func (l *lru[K, V]) put(k K, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.items[k]; ok {
		e.Value = entry[K, V]{k, v}
		l.order.MoveToFront(e)
		return
	}
	l.items[k] = l.order.PushFront(entry[K, V]{k, v})
	if l.order.Len() > l.size {
		oldest := l.order.Back()
		l.order.Remove(oldest)
		delete(l.items, oldest.Value.(entry[K, V]).key)
	}
}

func (l *lru[K, V]) drop(k K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.items[k]; ok {
		l.order.Remove(e)
		delete(l.items, k)
	}
}
