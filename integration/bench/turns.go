package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/scriptedmodel"
)

const (
	// warmUp is how many turns a conversation has before it is measured: the first is cold, and
	// beside the second Hermes asks for a title.
	warmUp = 3
	// modelMemory bounds what the model remembers of its requests, which nobody asks for.
	modelMemory = 1 << 20

	modelKey = "sk-bench"
	reply    = "Noted, and nothing else is to be said about it."
)

// warmTurn measures turns on the system and on a bare Hermes, one after the other, first the one
// and then the other. Both have a process a conversation, equal histories, and one model that
// answers at once.
func warmTurn(ctx context.Context, opt Options) (_ []Result, err error) {
	dir, err := os.MkdirTemp("", "hwbench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	baseURL, stopModel, err := startModel(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopModel()) }()
	opt.Progress("Starting the system")
	s, err := startSystem(ctx, opt, dir, baseURL, modelKey, scriptedmodel.DefaultModelName)
	if err != nil {
		return nil, fmt.Errorf("%w (its log is %s)", err, opt.Log)
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	w := &warm{opt: opt, system: s, dir: dir, config: modelConfig(baseURL, modelKey, scriptedmodel.DefaultModelName), phases: map[string][]float64{}}
	for done := 0; done < opt.Turns; {
		n := min(opt.PerConversation, opt.Turns-done)
		if err := w.conversation(ctx, n); err != nil {
			return nil, fmt.Errorf("%w (the system's log is %s)", err, opt.Log)
		}
		done += n
		opt.Progress(fmt.Sprintf("Turns %d of %d: p50 %.1f ms, bare Hermes %.1f ms; p99 %.1f ms, bare Hermes %.1f ms", done, opt.Turns,
			millis(percentile(w.ours, 50)), millis(percentile(w.bare, 50)), millis(percentile(w.ours, 99)), millis(percentile(w.bare, 99))))
	}
	for _, phase := range slices.Sorted(maps.Keys(w.phases)) {
		opt.Progress(fmt.Sprintf("Phase %-18s p50 %6.2f ms, p99 %6.2f ms", phase, percentile(w.phases[phase], 50), percentile(w.phases[phase], 99)))
	}
	var out []Result
	for _, p := range []float64{50, 99} {
		out = append(out, result(fmt.Sprintf("warm_turn_p%g", p), "ms", millis(percentile(w.ours, p)), millis(percentile(w.bare, p))))
	}
	return out, nil
}

func startModel(ctx context.Context) (baseURL string, stop func() error, err error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listen for the model: %w", err)
	}
	model := scriptedmodel.New(scriptedmodel.Config{RecordBytes: modelMemory})
	model.On(func(r scriptedmodel.Request) bool { return r.Kind == scriptedmodel.KindTurn }, scriptedmodel.Text(reply))
	// It outlives ctx: the turns of the system end before it does.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- model.Serve(ctx, lis) }()
	return "http://" + lis.Addr().String() + "/v1", func() error {
		cancel()
		return <-done
	}, nil
}

// warm is the measurement so far.
type warm struct {
	opt           Options
	system        *system
	dir           string
	config        []byte
	conversations int
	ours, bare    []time.Duration
	phases        map[string][]float64
}

// conversation measures n turns in a new conversation of each side.
func (w *warm) conversation(ctx context.Context, n int) (err error) {
	w.conversations++
	c := harness.Conversation{Organization: organization, ID: fmt.Sprintf("c-%d", w.conversations)}
	if _, err := w.system.client.CreateConversation(ctx, c); err != nil {
		return fmt.Errorf("create a conversation: %w", err)
	}
	// One home for all, as an organization has: its SessionDB grows on both sides.
	b, err := startBare(ctx, w.opt.HermesVenv, filepath.Join(w.dir, "bare"), w.config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	for i := range warmUp + n {
		text := fmt.Sprintf("Message %d of conversation %s: please take note of it.", i, c.ID)
		sides := []func(context.Context, string, bool) error{
			func(ctx context.Context, text string, measured bool) error {
				got, took, phases, err := w.system.turn(ctx, c, fmt.Sprintf("k-%d", i), text)
				if err = check(got, err); err != nil || !measured {
					return err
				}
				w.ours = append(w.ours, took)
				for name, ms := range phases {
					w.phases[name] = append(w.phases[name], ms)
				}
				return nil
			},
			func(ctx context.Context, text string, measured bool) error {
				got, took, err := b.turn(ctx, text)
				if err = check(got, err); err != nil || !measured {
					return err
				}
				w.bare = append(w.bare, took)
				return nil
			},
		}
		// What a turn leaves behind runs beside the next one: each side follows the other, and itself,
		// equally often. Also over the conversations, because Hermes's background review comes every
		// ten turns, which alternation within one would give to the same side each time.
		if (i+w.conversations)%2 == 1 {
			slices.Reverse(sides)
		}
		for _, turn := range sides {
			if err := turn(ctx, text, i >= warmUp); err != nil {
				return err
			}
		}
	}
	return nil
}

// check fails for a reply that is not the model's: a measured turn must be a whole one.
func check(got string, err error) error {
	if err == nil && strings.TrimSpace(got) != reply {
		err = fmt.Errorf("the reply is %q, want %q", got, reply)
	}
	return err
}
