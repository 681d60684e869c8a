package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/testkit"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/store"
	"humanwork.internal/services/routing/internal/store/storetest"
)

// start runs stores of one database, opening them at the same time.
func start(t *testing.T, url string, n int) []*Store {
	t.Helper()
	var stores []*Store
	var done []chan error
	ctx, cancel := context.WithCancel(context.Background())
	for range n {
		s := New(Options{URL: url, MaxConnections: 4, MaxEstablishing: 4})
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		stores, done = append(stores, s), append(done, ended)
	}
	t.Cleanup(func() {
		cancel()
		for _, d := range done {
			if err := <-d; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
	for i, s := range stores {
		select {
		case err := <-done[i]:
			done[i] <- nil
			t.Fatalf("Run: %v", err)
		case <-s.Opened():
		}
	}
	return stores
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (a, b store.Store) {
		s := start(t, testkit.Postgres(t), 2)
		return s[0], s[1]
	})
}

func TestMigratesOnceFromManyAndAgain(t *testing.T) {
	url := testkit.Postgres(t)
	start(t, url, 4)
	start(t, url, 1)
}

func TestLostConnectionIsNoticedAndReleases(t *testing.T) {
	url := testkit.Postgres(t)
	stores := start(t, url, 2)
	if _, _, err := stores[0].AddOrganization(t.Context(), "acme", "cell-0"); err != nil {
		t.Fatal(err)
	}
	admin, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	err = stores[0].Establish(t.Context(), "acme", func(ctx context.Context, tx store.Establishment) error {
		if _, err := tx.Record(ctx, directory.Intent{Conversation: directory.Conversation{ID: "c"}, Digest: []byte("d")}); err != nil {
			return err
		}
		if _, err := admin.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_locks
			WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); err != nil {
			return err
		}
		// The lock went with the backend: the next holder comes in while this one still runs.
		if err := stores[1].Establish(ctx, "acme", func(context.Context, store.Establishment) error { return nil }); err != nil {
			t.Errorf("next holder: %v", err)
		}
		for what, err := range map[string]error{
			"Held": tx.Held(ctx),
			"Bind": func() error { _, err := tx.Bind(ctx, "c", "s"); return err }(),
		} {
			if !errors.Is(err, directory.ReasonEstablishmentLost) || !errors.Is(err, errs.Unavailable) {
				t.Errorf("%s: got %v, want ESTABLISHMENT_LOST", what, err)
			}
		}
		return tx.Held(ctx)
	})
	if !errors.Is(err, directory.ReasonEstablishmentLost) {
		t.Errorf("Establish: got %v, want ESTABLISHMENT_LOST", err)
	}
}

func TestDatabaseThatCannotBeReached(t *testing.T) {
	s := New(Options{URL: "postgres://nobody:secret@127.0.0.1:1/none?connect_timeout=2", MaxConnections: 1, MaxEstablishing: 1})
	if _, err := s.Organization(t.Context(), "acme"); !errors.Is(err, directory.ReasonStarting) {
		t.Errorf("before Run: got %v, want SERVICE_STARTING", err)
	}
	// Run waits for the database, says so, and ends when told.
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run: got %v, want nil at its end", err)
	}
	err := s.Ready()
	if !errors.Is(err, directory.ReasonStarting) || !strings.Contains(err.Error(), "postgres_url_file") || strings.Contains(err.Error(), "secret") {
		t.Errorf("Ready: got %v, want SERVICE_STARTING that names postgres_url_file", err)
	}
	wrong := New(Options{URL: "postgres://u:secret@[bad", MaxConnections: 1, MaxEstablishing: 1})
	if err := wrong.Run(t.Context()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Run with a URL that is none: got %v, want an error without the URL", err)
	}
}
