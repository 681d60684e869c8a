package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// streamed moves a large file up and down through REST and as a plain file, by turns.
func streamed(ctx context.Context, opt Options) (out []Result, err error) {
	size := int64(opt.StreamMiB) << 20
	err = withFiles(ctx, opt, func(w *files, dir string) error {
		before, err := w.process.peak()
		if err != nil {
			return err
		}
		var up, down, plainUp, plainDown time.Duration
		for i := range opt.StreamRounds {
			opt.Progress(fmt.Sprintf("Stream of %d MiB: round %d of %d", opt.StreamMiB, i+1, opt.StreamRounds))
			sides := []func() error{
				func() error { return w.stream(ctx, size, &up, &down) },
				func() error { return plainStream(ctx, dir, size, &plainUp, &plainDown) },
			}
			if i%2 == 1 {
				sides[0], sides[1] = sides[1], sides[0]
			}
			if err := errors.Join(sides[0](), sides[1]()); err != nil {
				return err
			}
		}
		after, err := w.process.peak()
		if err != nil {
			return err
		}
		speed := func(took time.Duration) float64 { return float64(opt.StreamMiB*opt.StreamRounds) / took.Seconds() }
		out = []Result{
			result("stream_up", "MiB/s", speed(up), speed(plainUp)), result("stream_down", "MiB/s", speed(down), speed(plainDown)),
			// The baseline is the same process before.
			result("stream_peak_memory", "MiB", after, before),
		}
		return nil
	})
	return out, err
}

const streamPath = "workspace/large"

func (w *files) stream(ctx context.Context, size int64, up, down *time.Duration) error {
	began := time.Now()
	if _, _, err := w.client.PutFile(ctx, w.conversation, streamPath, nil, io.LimitReader(zeros{}, size), size); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	*up += time.Since(began)
	began = time.Now()
	resp, err := w.client.Stream(ctx, http.MethodGet, w.conversation.FileURL(streamPath), nil, nil, 0)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	*down += time.Since(began)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes, want %d", n, size)
	}
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	return nil
}

func plainStream(ctx context.Context, dir string, size int64, up, down *time.Duration) error {
	began := time.Now()
	buffer := make([]byte, 1<<20)
	err := writePlain(dir, "large", func(f *os.File) error {
		for left := size; left > 0; left -= int64(len(buffer)) {
			if _, err := f.Write(buffer[:min(left, int64(len(buffer)))]); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the plain file: %w", err)
	}
	*up += time.Since(began)
	began = time.Now()
	f, err := os.Open(filepath.Join(dir, "large"))
	if err != nil {
		return fmt.Errorf("read the plain file: %w", err)
	}
	defer f.Close()
	// Not io.Discard itself, which would read with a buffer of its own.
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buffer); err != nil {
		return fmt.Errorf("read the plain file: %w", err)
	}
	*down += time.Since(began)
	return nil
}

// zeros is an endless source whose own cost is small.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// peak is the most resident memory that the process had, in MiB.
func (p *process) peak() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of the system: %w", err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(after)
	if len(fields) < 2 || fields[1] != "kB" {
		return 0, errors.New("read the memory of the system: no VmHWM")
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of the system: %w", err)
	}
	return kib / 1024, nil
}
