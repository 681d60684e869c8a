// Package storetest is the contract every store.Store must keep.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/store"
)

// Run runs the contract on two running stores of one fresh database, as two processes hold them.
func Run(t *testing.T, open func(t *testing.T) (a, b store.Store)) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, a, b store.Store)
	}{
		{"organizations", organizations}, {"organization race", organizationRace}, {"conversations", conversations},
		{"pages", pages}, {"binding", binding}, {"exclusion", exclusion}, {"waiting ends with the context", waiting},
		{"failure releases", failureReleases},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := open(t)
			c.test(t, a, b)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err error, kind errs.Kind, reason errs.Reason) {
	t.Helper()
	if !errors.Is(err, kind) || !errors.Is(err, reason) {
		t.Errorf("%s: got %v, want %s %s", what, err, kind, reason)
	}
}

func provision(t *testing.T, s store.Store, org string) {
	t.Helper()
	_, _, err := s.AddOrganization(t.Context(), org, "cell-0")
	must(t, err)
	must(t, s.MarkProvisioned(t.Context(), org))
}

func intent(org, conv string, watermark int64) directory.Intent {
	return directory.Intent{Conversation: directory.Conversation{Organization: org, ID: conv, Specialist: "spec"},
		Digest: []byte("digest"), SessionWatermark: watermark}
}

func organizations(t *testing.T, a, b store.Store) {
	ctx := t.Context()
	_, err := a.Organization(ctx, "acme")
	want(t, "unknown organization", err, errs.NotFound, directory.ReasonOrganizationNotFound)
	want(t, "provisioning an unknown organization", a.MarkProvisioned(ctx, "acme"), errs.NotFound, directory.ReasonOrganizationNotFound)
	o, p, err := a.AddOrganization(ctx, "acme", "cell-1")
	must(t, err)
	if o.ID != "acme" || o.Provisioned || o.CreateTime.IsZero() || p != (directory.Placement{Cell: "cell-1", Epoch: 1}) {
		t.Errorf("AddOrganization = %+v, %+v", o, p)
	}
	_, err = b.Organization(ctx, "acme")
	want(t, "organization before provisioning", err, errs.NotFound, directory.ReasonOrganizationNotFound)
	_, err = b.Placement(ctx, "acme")
	want(t, "placement before provisioning", err, errs.NotFound, directory.ReasonOrganizationNotFound)
	// Another configuration chooses another cell; the placement stays.
	o2, p2, err := b.AddOrganization(ctx, "acme", "cell-2")
	must(t, err)
	if !o2.CreateTime.Equal(o.CreateTime) || p2 != p {
		t.Errorf("second AddOrganization = %+v, %+v, want %+v, %+v", o2, p2, o, p)
	}
	must(t, a.MarkProvisioned(ctx, "acme"))
	must(t, a.MarkProvisioned(ctx, "acme"))
	o3, err := b.Organization(ctx, "acme")
	must(t, err)
	if !o3.Provisioned || !o3.CreateTime.Equal(o.CreateTime) {
		t.Errorf("Organization = %+v", o3)
	}
	p3, err := b.Placement(ctx, "acme")
	must(t, err)
	if p3 != p {
		t.Errorf("Placement = %+v, want %+v", p3, p)
	}
}

func organizationRace(t *testing.T, a, b store.Store) {
	cells := make([]string, 20)
	var wg sync.WaitGroup
	for i := range cells {
		wg.Go(func() {
			_, p, err := []store.Store{a, b}[i%2].AddOrganization(t.Context(), "acme", fmt.Sprintf("cell-%d", i))
			if err != nil {
				t.Errorf("AddOrganization: %v", err)
			}
			cells[i] = p.Cell
		})
	}
	wg.Wait()
	slices.Sort(cells)
	if distinct := slices.Compact(cells); len(distinct) != 1 {
		t.Errorf("placed on %v, want one cell", distinct)
	}
}

func conversations(t *testing.T, a, b store.Store) {
	ctx := t.Context()
	provision(t, a, "acme")
	provision(t, a, "other")
	_, err := a.Intent(ctx, "acme", "c")
	want(t, "unknown intent", err, errs.NotFound, directory.ReasonConversationNotFound)
	must(t, a.Establish(ctx, "acme", func(ctx context.Context, tx store.Establishment) error {
		i, err := tx.Record(ctx, intent("acme", "c", 7))
		must(t, err)
		if i.CreateTime.IsZero() {
			t.Error("Record gave no create time")
		}
		// Committed at once, not with the establishment: a crash must find it.
		seen, err := b.Intent(ctx, "acme", "c")
		must(t, err)
		if seen.SessionWatermark != 7 || string(seen.Digest) != "digest" || seen.Specialist != "spec" || seen.Bound() {
			t.Errorf("Intent = %+v", seen)
		}
		_, _, err = b.Conversation(ctx, "acme", "c")
		want(t, "conversation before binding", err, errs.NotFound, directory.ReasonConversationNotFound)
		_, err = tx.Bind(ctx, "c", "s1")
		return err
	}))
	c, p, err := b.Conversation(ctx, "acme", "c")
	must(t, err)
	if c.Session != "s1" || c.Specialist != "spec" || c.CreateTime.IsZero() || p != (directory.Placement{Cell: "cell-0", Epoch: 1}) {
		t.Errorf("Conversation = %+v, %+v", c, p)
	}
	_, _, err = b.Conversation(ctx, "other", "c")
	want(t, "another organization's conversation", err, errs.NotFound, directory.ReasonConversationNotFound)
	must(t, a.Establish(ctx, "acme", func(ctx context.Context, tx store.Establishment) error {
		_, err := tx.Record(ctx, intent("acme", "gone", 0))
		must(t, err)
		must(t, tx.Withdraw(ctx, "gone"))
		return tx.Withdraw(ctx, "c") // bound: stays
	}))
	_, err = a.Intent(ctx, "acme", "gone")
	want(t, "withdrawn intent", err, errs.NotFound, directory.ReasonConversationNotFound)
	if _, err := a.Intent(ctx, "acme", "c"); err != nil {
		t.Errorf("withdrawing a bound conversation: %v", err)
	}
}

func pages(t *testing.T, a, _ store.Store) {
	ctx := t.Context()
	provision(t, a, "acme")
	provision(t, a, "other")
	var order []string
	for i := range 7 {
		id := fmt.Sprintf("c%d", 9-i) // ids against the order of time
		must(t, a.Establish(ctx, "acme", func(ctx context.Context, tx store.Establishment) error {
			if _, err := tx.Record(ctx, intent("acme", id, 0)); err != nil || i == 3 {
				return err
			}
			order = append(order, id)
			_, err := tx.Bind(ctx, id, "s-"+id)
			return err
		}))
	}
	var got []string
	after := store.Cursor{}
	for {
		list, err := a.Conversations(ctx, "acme", after, 2)
		must(t, err)
		if len(list) == 0 {
			break
		}
		for _, c := range list {
			got = append(got, c.ID)
			after = store.Cursor{CreateTime: c.CreateTime, ID: c.ID}
		}
	}
	if !slices.Equal(got, order) {
		t.Errorf("pages of two = %v, want %v", got, order)
	}
	if list, err := a.Conversations(ctx, "other", store.Cursor{}, 10); err != nil || len(list) != 0 {
		t.Errorf("another organization's list = %v, %v, want none", list, err)
	}
}

func binding(t *testing.T, a, _ store.Store) {
	ctx := t.Context()
	provision(t, a, "acme")
	provision(t, a, "other")
	must(t, a.Establish(ctx, "acme", func(ctx context.Context, tx store.Establishment) error {
		for i, id := range []string{"one", "two", "three"} {
			_, err := tx.Record(ctx, intent("acme", id, int64(i)))
			must(t, err)
		}
		_, err := tx.Bind(ctx, "one", "s1")
		must(t, err)
		again, err := tx.Bind(ctx, "one", "s1")
		must(t, err)
		if again.Session != "s1" {
			t.Errorf("binding again = %+v", again)
		}
		_, err = tx.Bind(ctx, "one", "s2")
		want(t, "binding another session", err, errs.Internal, directory.ReasonSessionBound)
		_, err = tx.Bind(ctx, "two", "s1")
		want(t, "binding a bound session", err, errs.Internal, directory.ReasonSessionBound)
		pending, err := tx.Pending(ctx)
		must(t, err)
		if len(pending) != 2 || pending[0].ID != "two" || pending[1].ID != "three" || pending[1].SessionWatermark != 2 {
			t.Errorf("Pending = %+v, want two, three", pending)
		}
		free, err := tx.Free(ctx, []string{"s3", "s1", "s2"})
		must(t, err)
		if !slices.Equal(free, []string{"s3", "s2"}) {
			t.Errorf("Free = %v, want s3, s2", free)
		}
		return tx.Held(ctx)
	}))
	// Session ids are unique in an organization's SessionDB, not beyond.
	must(t, a.Establish(ctx, "other", func(ctx context.Context, tx store.Establishment) error {
		_, err := tx.Record(ctx, intent("other", "one", 0))
		must(t, err)
		_, err = tx.Bind(ctx, "one", "s1")
		return err
	}))
}

func exclusion(t *testing.T, a, b store.Store) {
	var inside [2]atomic.Int32
	var total atomic.Int32
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			org := i % 2
			err := []store.Store{a, b}[i/2%2].Establish(t.Context(), fmt.Sprintf("org-%d", org), func(ctx context.Context, tx store.Establishment) error {
				if n := inside[org].Add(1); n != 1 {
					t.Errorf("%d establishments of one organization at once", n)
				}
				defer inside[org].Add(-1)
				total.Add(1)
				return tx.Held(ctx)
			})
			if err != nil {
				t.Errorf("Establish: %v", err)
			}
		})
	}
	wg.Wait()
	if n := total.Load(); n != 40 {
		t.Errorf("%d establishments ran, want 40", n)
	}
}

// waiting checks both places a caller waits: behind its own process and behind another.
func waiting(t *testing.T, a, b store.Store) {
	must(t, a.Establish(t.Context(), "acme", func(ctx context.Context, _ store.Establishment) error {
		for name, s := range map[string]store.Store{"same process": a, "other process": b} {
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			err := s.Establish(short, "acme", func(context.Context, store.Establishment) error { return errors.New("entered") })
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: got %v, want context.DeadlineExceeded", name, err)
			}
			if err := s.Establish(ctx, "other", func(context.Context, store.Establishment) error { return nil }); err != nil {
				t.Errorf("%s: another organization: %v", name, err)
			}
		}
		return nil
	}))
	must(t, b.Establish(t.Context(), "acme", func(context.Context, store.Establishment) error { return nil }))
}

func failureReleases(t *testing.T, a, b store.Store) {
	failed := errors.New("failed")
	if err := a.Establish(t.Context(), "acme", func(context.Context, store.Establishment) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v, want the function's error", err)
	}
	must(t, b.Establish(t.Context(), "acme", func(context.Context, store.Establishment) error { return nil }))
}
