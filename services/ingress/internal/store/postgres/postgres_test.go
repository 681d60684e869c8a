package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"humanwork.internal/pkg/testkit"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/store/postgres"
	"humanwork.internal/services/ingress/internal/store/storetest"
	"humanwork.internal/services/ingress/internal/turn"
)

func open(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(url, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		s := open(t, testkit.Postgres(t))
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatalf("Migrate: %v", err)
		}
		return s
	})
}

func TestMigrateTogether(t *testing.T) {
	url := testkit.Postgres(t)
	var wg sync.WaitGroup
	for range 4 {
		s := open(t, url)
		wg.Go(func() {
			if err := s.Migrate(t.Context()); err != nil {
				t.Errorf("Migrate: %v", err)
			}
		})
	}
	wg.Wait()
}

func TestUnreachable(t *testing.T) {
	s := open(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	for name, err := range map[string]error{
		"Migrate": s.Migrate(t.Context()),
		"Hold":    s.Hold(t.Context(), func(int32) { t.Error("held a lock of no database") }),
		"Accept": func() error {
			_, err := s.Accept(t.Context(), store.Submission{}, nil)
			return err
		}(),
		"Turn": func() error {
			_, err := s.Turn(t.Context(), turn.Conversation{}, "")
			return err
		}(),
	} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s = %v, want %v", name, err, store.ErrUnavailable)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Turn(ctx, turn.Conversation{}, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("Turn of a caller that gave up = %v, want %v", err, context.Canceled)
	}
}
