package authority

import (
	"container/list"
	"sync"
)

// lru is a bounded set that forgets what was not asked for longest.
type lru[K comparable] struct {
	size int

	mu    sync.Mutex
	order *list.List // of K, most recent first
	items map[K]*list.Element
}

func newLRU[K comparable](size int) *lru[K] {
	return &lru[K]{size: size, order: list.New(), items: map[K]*list.Element{}}
}

func (l *lru[K]) has(k K) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.items[k]
	if ok {
		l.order.MoveToFront(e)
	}
	return ok
}

func (l *lru[K]) add(k K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.items[k]; ok {
		l.order.MoveToFront(e)
		return
	}
	l.items[k] = l.order.PushFront(k)
	if l.order.Len() > l.size {
		oldest := l.order.Back()
		l.order.Remove(oldest)
		delete(l.items, oldest.Value.(K))
	}
}
