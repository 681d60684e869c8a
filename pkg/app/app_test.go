package app_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"humanwork.internal/pkg/app"
)

type journal struct {
	mu   sync.Mutex
	list []string
}

func (j *journal) component(name string, failure <-chan error) app.Component {
	return app.Component{Name: name, Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case err := <-failure:
			return err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.list = append(j.list, name)
		return nil
	}}
}

func TestComponentsStopInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- app.Run(ctx, zap.NewNop(), time.Second, j.component("a", nil), j.component("b", nil), j.component("c", nil))
		}()
		synctest.Wait()
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if want := []string{"c", "b", "a"}; !slices.Equal(j.list, want) {
			t.Errorf("stopped %v, want %v", j.list, want)
		}
	})
}

func TestAFailureStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		fail := make(chan error, 1)
		boom := errors.New("boom")
		fail <- boom
		err := app.Run(t.Context(), zap.NewNop(), time.Second, j.component("a", nil), j.component("b", fail))
		if !errors.Is(err, boom) {
			t.Errorf("Run = %v, want boom", err)
		}
		if want := []string{"a"}; !slices.Equal(j.list, want) {
			t.Errorf("stopped %v, want %v", j.list, want)
		}
	})
}

func TestAComponentThatHangsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		release := make(chan struct{})
		defer close(release)
		hang := app.Component{Name: "hang", Run: func(context.Context) error { <-release; return nil }}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		err := app.Run(ctx, zap.NewNop(), time.Second, j.component("a", nil), hang)
		if !errors.Is(err, app.ErrForced) {
			t.Errorf("Run = %v, want ErrForced", err)
		}
	})
}
